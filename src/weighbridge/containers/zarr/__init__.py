"""Arrays of zarr, and the databases of TensorStore (OCDBT) that hold them: what Orbax writes."""
