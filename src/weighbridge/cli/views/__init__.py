"""How the commands' answers look on a screen. Each module prints reports or plans of one kind through `render`."""
