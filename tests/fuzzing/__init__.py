"""Files of models that are wrong in one place: the search that `make nightly` runs long and the tests run short."""
