"""NumPy's own formats: .npy and .npz."""
