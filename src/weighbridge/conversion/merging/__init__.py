"""Merges several models into one: recipes in mergekit's YAML, the methods, and the merged model."""
