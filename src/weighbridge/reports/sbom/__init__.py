"""Bills of materials of models: CycloneDX and SPDX."""
