"""The Python interface; `weighbridge/__init__.py` names what is public.

objects.py    `open`, and the models and tensors that it returns
writing.py    `plan_<verb>` and `<verb>` for everything that writes a model; their keywords are in keywords.py
training.py   `save_checkpoint` and `load_checkpoint`
imatrix.py    what needs two models or an importance matrix
"""
