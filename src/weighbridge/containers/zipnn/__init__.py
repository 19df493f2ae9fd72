"""ZipNN: floats in planes of bytes in Huffman codes, as files of any format or as tensors of Safetensors files."""
