"""Every cap on untrusted input, with its reason. A parser bounds each count by the bytes left *and* by these."""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30
# Bytes of one tensor, and elements of one axis: files, and numpy, count them as signed numbers of 64 bits.
SIGNED_64: Final = 1 << 63
# Bytes of arrays and buffers that a provider keeps by default: some decoded matrices of a large model.
PROVIDER_CACHE: Final = 256 * MIB

# The Rust reference refuses a longer safetensors header (`MAX_HEADER_SIZE`, decimal); the writer must keep to it too.
SAFETENSORS_HEADER: Final = 100_000_000
# llama.cpp's gguf.cpp: a string has at most 1 GiB, an array 2^30 elements, a tensor 4 dimensions, a name 63 bytes.
GGUF_STRING: Final = GIB
GGUF_ARRAY: Final = 1 << 30
GGUF_DIMS: Final = 4
GGUF_NAME: Final = 63
# The same in files for ComfyUI-GGUF, whose reader is Python's and whose patched llama-quantize takes longer names.
GGUF_PICTURE_DIMS: Final = 5
GGUF_PICTURE_NAME: Final = 127
# The spec allows nested arrays (llama.cpp refuses them); this bound keeps a walk from recursing without end.
GGUF_NESTING: Final = 4
# Shape ranks seen in real files stay below 8; numpy's own cap is 64. Beyond it a header is hostile.
DIMS: Final = 64
# The largest index JSON seen in public (Kimi-K2.5) is 23.5 MB; config.json files stay below 1 MB.
INDEX_JSON: Final = 256 * MIB
CONFIG_JSON: Final = 64 * MIB
# tokenizer.json of a 262k vocabulary is about 35 MB.
TOKENIZER_JSON: Final = 512 * MIB
# serde_json stops at 128 levels; Python's own parser would exhaust the C stack some thousand levels later.
JSON_DEPTH: Final = 128
# A shard number in a name has 5 or 6 digits; a larger set is implausible.
SHARDS: Final = 100_000
# Files of one model that stay open: processes have descriptors for 1024, on macOS for 256 and on Windows for 512.
OPEN_FILES: Final = 128
# A `.npy` header is one line of Python literal; numpy's own default limit.
NPY_HEADER: Final = 10_000
# End-of-central-directory: 22 bytes and a comment of at most 65535 bytes (APPNOTE 4.3.16).
ZIP_TAIL: Final = 22 + 65_535
# One slab is the unit of reading, of kernels and of threads: a read into a fresh 64 MiB buffer is 4 times
# slower than into a warm one of 1-4 MiB (page faults), so buffers are this small and are reused.
SLAB: Final = 4 * MIB
# Memory of a conversion, excluding the interpreter, unless the caller sets another limit.
MEMORY: Final = 192 * MIB
# The largest vocabulary seen in public has 901,629 tokens (XLM-V). Files pad a vocabulary by a bare number, so the
# number itself needs a bound.
VOCABULARY: Final = 1 << 21
RANK_BYTES: Final = 1024  # bytes of one token in a rank file: the longest published ones are rows of 512 spaces
# Experts of one layer whose factors are read or made. The largest models known have some hundreds.
EXPERTS: Final = 1 << 16
# Tensor names generated from a config's sizes. The largest models known (384 experts, 61 layers) need some 200,000.
MAPPED_TENSORS: Final = 2_000_000
# Layers of a model: lists have one item per layer. The deepest known models have some 200; llama.cpp supports 512.
LAYERS: Final = 1 << 16
# The front matter of a model card (README.md). Real ones stay below 100 kB; YAML is parsed at some 100 kB/s.
MODEL_CARD: Final = 256 << 10
# Recognising a file (`sniff`): the bytes that every recogniser may read, and the longest structure that is decoded.
# Headers, config files and zip directories of real models stay below 8 MiB.
SNIFF_HEAD: Final = 64 << 10
SNIFF_WHOLE: Final = 8 * MIB
# Steps of recognisers: opcodes, protobuf fields, GGUF keys, zip and tar members. The first few identify a format.
SNIFF_OPCODES: Final = 4096
SNIFF_FIELDS: Final = 512
SNIFF_KEYS: Final = 4096
SNIFF_STRING: Final = MIB
SNIFF_ZIP_MEMBERS: Final = 100_000
SNIFF_TAR_MEMBERS: Final = 256
# Members of an archive that is opened as a folder; levels of archives and compressed files in each other (a zip with a
# tar.gz has 3); links to links between the members.
WRAPPED_MEMBERS: Final = 200_000
WRAPPED_DEPTH: Final = 4
WRAPPED_LINKS: Final = 8
# A manifest or an index of manifests: registries accept 4 MiB (distribution-spec 1.1). Indexes in each other: an image
# for several systems has 2.
MANIFEST: Final = 4 * MIB
MANIFEST_DEPTH: Final = 4
# Temporary disk space for one member or compressed file that can't be read in place, unless WEIGHBRIDGE_SPOOL allows
# more: the 7B models of 16-bit floats fit.
SPOOL: Final = 16 * GIB
# Window of a zstd stream: the decoder's own default limit.
ZSTD_WINDOW: Final = 27
# Dictionary of `xz -9`; streams that need more memory are not decompressed.
SNIFF_XZ: Final = 64 * MIB
# Values that decide how a packed weight is read: single settings; bitsandbytes' JSON (under 1 kB); the group of each
# column (the widest known matrix has some 250,000); zero points (16 MiB of a head of 128k outputs in groups of 32).
PROBE_SETTING: Final = 4 << 10
PROBE_TEXT: Final = MIB
PROBE_INDEX: Final = 16 * MIB
PROBE_ZEROS: Final = 256 * MIB
# Files of a folder that a report lists and reads; a folder with more is a data set.
FOLDER_FILES: Final = 20_000
FOLDER_SNIFFED: Final = 1000
# Zeros at the end of a file or tensor that are worth reporting: the block of file systems and of download tools.
ZERO_RUN: Final = 64 << 10
# Where zeros begin: bytes at the end that are read whole (a second of a slow disk), and a sample before them: a page.
ZERO_SCAN: Final = 16 * MIB
ZERO_SAMPLE: Final = 4 << 10
# Memory of the values of one pickle, as the machine counts it, which is never less than the actual memory. The second
# is for opening a file: a checkpoint of a million tensors stays below it. The first is for scans, which must stay below
# 200 MB for any file.
PICKLE_MEMORY: Final = 128 * MIB
PICKLE_READING: Final = 2 * GIB
# The machine's window of the file. Opcodes are charged once per window, so memory may exceed its limit by that of this
# many opcodes.
PICKLE_WINDOW: Final = 16 << 10
# Byte strings longer than this stay in the file (arrays and tensors pickled in full).
PICKLE_BLOB: Final = 64 << 10
# Bytes of an integer: reading one is linear, but whoever prints it pays quadratic time.
PICKLE_LONG: Final = 64 << 10
# Parts of a key that hashing may visit: keys of real pickles have a few.
PICKLE_STEPS: Final = 1 << 20
# Digits of a decimal integer; CPython's own cap (`sys.int_info.default_max_str_digits`).
PICKLE_DIGITS: Final = 4300
# Names of a tensor in nested dicts and modules: real models stay below 40 levels.
PICKLE_DEPTH: Final = 256
# Characters of a key that become part of a tensor's name.
PICKLE_NAME: Final = 1024
# Bytes of arrays that must be decoded or reordered to be read, and so occupy memory (older protocols store bytes as
# text).
PICKLE_INLINE: Final = 256 * MIB
# Consecutive pickles in a file; torch wrote five.
PICKLES: Final = 1000
# Opcodes of a pickle that an anatomy lists: a checkpoint of 1,000 tensors has 30,000.
PICKLE_REGIONS: Final = 50_000
# Lists of findings are for people: beyond this many of one kind, only their number is reported.
PICKLE_FINDINGS: Final = 50
# Plain values (epoch, learning rates) that are kept as metadata.
PICKLE_PLAIN: Final = 10_000
# The most bytes that an expanded view (stride 0) may become: 4 stored bytes can claim to be terabytes.
EXPANDED: Final = GIB
# An entry of a legacy importance matrix is named after a tensor, which has 63 bytes at most in ggml.
IMATRIX_NAME: Final = 256
# Tensors in the tree of `wb inspect` by default (more than the largest models have), and its lines.
TREE_TENSORS: Final = 300_000
TREE_LINES: Final = 1000
# A user's table of a family: the largest shipped one has 10 kB.
FAMILY_TABLE: Final = MIB
# A scan of one file and everything nested in it: bytes unpacked or interpreted (except storages), members, levels of
# archives in archives (a `.nemo` is a tar.gz with a zip: 3), and listed findings.
SCAN_BYTES: Final = GIB
SCAN_MEMBERS: Final = 200_000
SCAN_DEPTH: Final = 8
# The bounds of one file in proportion to its bytes, and to those unpacked from it: an archive whose members share their
# bytes, and are such archives too, may have any number of members. A zip's directory has 46 bytes per member; a byte of
# a benign file is interpreted a few times for each level of archives.
SCAN_LEAST_BYTES: Final = 16 * MIB
SCAN_LEAST_MEMBERS: Final = 1024
SCAN_PASSES: Final = 32
SCAN_MEMBER_BYTES: Final = 16
SCAN_FINDINGS: Final = 1000
# Text of a file in a finding: longer names and arguments are cut.
SCAN_SHOWN: Final = 160
# Files whose reports a scan of a folder keeps: beyond that, only those with findings.
SCAN_FILES: Final = 20_000
# Bytes of a pickle that the extension's first walk reads: so few that its values stay far below the machine's limit of
# memory (a byte takes 208 at most).
SCAN_PLAIN: Final = 256 << 10
# A file that a scan reads at once: a thousand small reads take longer than a single one of this size.
SCAN_IN_MEMORY: Final = MIB
# A text that is read as YAML: PyYAML takes up to 4 s for a MiB; the largest configs have some 100 kB.
YAML_SIZE: Final = 2 * MIB
# A chat template, and all those of one file: the longest in public are some 30 kB.
JINJA_SIZE: Final = 256 << 10
JINJA_TOTAL: Final = 4 * JINJA_SIZE
# Regions of a file in a map of its layout: the header of a GGUF of 200,000 tensors has some 1,600,000.
VIEW_REGIONS: Final = 2_000_000
# Tensors of a file up to which such a map divides the header too, which takes some 50 us a tensor.
VIEW_DETAIL: Final = 20_000
# Bytes that a report explains one by one.
VIEW_BYTES: Final = 64 << 10
# Steps of a pickle that a report explains at once, each with its stack.
VIEW_STEPS: Final = 10_000
# Places of its memo that are shown with them: a step changes one of them, mostly.
VIEW_MEMO: Final = 1000
# Rendering a chat template: memory and CPU seconds in addition to those of its process, wall-clock seconds, characters
# of the output. Real templates take a millisecond for a few kB.
TEMPLATE_MEMORY: Final = 512 * MIB
TEMPLATE_SECONDS: Final = 2
TEMPLATE_WAIT: Final = 20.0
TEMPLATE_OUTPUT: Final = MIB
# A signature: 100 bytes a file, a third more in base64. Files of a signed model, and a key or chain in PEM.
SIGNATURE_SIZE: Final = 64 * MIB
SIGNED_FILES: Final = 200_000
PEM_SIZE: Final = MIB
# Fields of protobuf messages that a reader visits: a graph of 100,000 nodes has some 2,000,000. Levels of graphs in
# graphs; protobuf's own limit is 100.
PROTOBUF_FIELDS: Final = 5_000_000
PROTOBUF_DEPTH: Final = 100
# A message, which protobuf counts in signed numbers of 32 bits.
PROTOBUF_MESSAGE: Final = (1 << 31) - 1
# Bytes around the tensors of an existing file that is written again: graphs of 100,000 nodes have some 50 MB.
FRAME: Final = 256 * MIB
# Tensors whose numbers are written in another form than in memory (varints), and so occupy memory: they are small.
DECODED_TENSORS: Final = 256 * MIB
# A key of a TensorFlow table: the name of a variable. Real ones have some 200 bytes.
TABLE_KEY: Final = 64 << 10
# Objects of an HDF5 file: a dataset a weight, and a group for each level of names. A band of chunks that is unpacked at
# once: writers make chunks of some MiB.
HDF5_OBJECTS: Final = 1_000_000
HDF5_BAND: Final = 128 * MIB
# Levels of maps in a Flax checkpoint, and bytes of a key.
MSGPACK_DEPTH: Final = 64
MSGPACK_TEXT: Final = 64 << 10
# The XML of an OpenVINO graph: a model of 100 layers has some 10 MB. Its elements are nested 5 deep.
XML_GRAPH: Final = GIB
XML_DEPTH: Final = 64
# Tensors of a TensorFlow Lite model, activations included: large models have some 10,000.
FLATBUFFER_TENSORS: Final = 1_000_000

# Patterns for names in a ZeRO checkpoint. Each pattern is compared with each name; Megatron-DeepSpeed has some 20.
PART_PATTERNS: Final = 1024

# A recipe of `wb quantize`: the longest has a pair of 200 bytes for each of 80,000 tensors.
RECIPE_BYTES: Final = 16 << 20
