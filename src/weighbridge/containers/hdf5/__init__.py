"""HDF5: a bounded reader of its structure, of its datasets, and of the models that Keras writes."""
