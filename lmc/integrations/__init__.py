"""Other frameworks' programs on lmc: the room for DSPy; empty so far."""
