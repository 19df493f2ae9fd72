"""What libraries put into pickles, and how their own readers take it back: joblib, NumPy, PyTorch."""
