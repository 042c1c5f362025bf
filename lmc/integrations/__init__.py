"""Other frameworks' programs on lmc."""
