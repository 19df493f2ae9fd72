"""What else hides code or harm in a folder: each technique against its verdict and rule, honest files silent."""

from __future__ import annotations

import gzip
import json
import os
import struct
import zlib
from pathlib import Path

import pytest
from jinja2 import sandbox
from tests.costs import traced_memory
from tests.reports.scan import file_vectors as make
from tests.reports.scan.file_vectors import VECTORS, Vector

from weighbridge.containers import BUILT_IN
from weighbridge.io.decompress import CODECS
from weighbridge.io.source import BytesSource
from weighbridge.reports.scan import engine, registry, unsupported
from weighbridge.reports.scan.model import RULES, Budget, FileReport, MemberPath, Part, ScanVerdict, worst
from weighbridge.reports.scan.template import callables, faults
from weighbridge.reports.scan.template.values import is_inner

#: Codecs of packages that may be missing.
OF_PACKAGES = {"zstd", "lz4"}

IDS = [f"{v.name}-{v.rule}-{n}" for n, v in enumerate(VECTORS)]


def scanned(folder: Path, name: str, data: bytes, **beside: bytes) -> FileReport:
    for file, contents in {name: data, **beside}.items():
        (folder / file).write_bytes(contents)
    return engine.scan_file(os.fspath(folder / name))


def scan_vector(folder: Path, v: Vector) -> FileReport:
    return scanned(folder, v.name, v.data, **v.beside)


@pytest.mark.parametrize("v", VECTORS, ids=IDS)
def test_each_technique_has_its_verdict_and_rule(v: Vector, tmp_path: Path) -> None:
    report = scan_vector(tmp_path, v)
    assert (report.verdict, v.rule in {f.rule for f in report.findings}) == (v.verdict, True)


OWN = sorted({v.rule for v in VECTORS if not v.rule.startswith("pickle/dangerous")})


def test_every_rule_has_a_technique() -> None:
    elsewhere = tuple(rule for rule in RULES if rule.startswith(("pickle/", "zip/", "scan/")))
    own = {r for r, row in RULES.items() if row.verdict is not ScanVerdict.DATA_ONLY and r not in elsewhere}
    assert own | {"pickle/array-opcodes", "pickle/array-limit"} <= set(OWN)


@pytest.mark.mutation
@pytest.mark.parametrize("rule", [r for r in OWN if r != "file/appended-zip"])  # the look at zips tells of it as well
def test_without_a_rule_some_file_would_pass_for_milder(rule: str, tmp_path: Path) -> None:
    milder = []
    for number, v in enumerate(v for v in VECTORS if v.rule == rule):
        folder = tmp_path / str(number)
        folder.mkdir()
        left = [f.verdict for f in scan_vector(folder, v).findings if f.rule != rule]
        milder.append(worst((ScanVerdict.DATA_ONLY, *left)).rank < ScanVerdict(v.verdict).rank)
    assert any(milder)


@pytest.mark.mutation
def test_without_a_second_reading_an_appended_zip_would_pass(tmp_path: Path) -> None:
    appended = [v for v in VECTORS if v.rule == "file/appended-zip"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_second", lambda kind: ())
        verdicts = {v.name: scan_vector(tmp_path, v).verdict for v in appended}
    assert (verdicts["appended.png"], verdicts["appended.gguf"]) == ("data-only", "data-only")


# ---- honest files -----------------------------------------------------------------------------------------------

# In the manner of published templates: roles, tools, dates, loops with a namespace, raised errors, generation marks.
HONEST = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{{- bos_token }}{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}"
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}"
    "{%- endif %}{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- endif %}{%- for t in tools %}{{- t | tojson(indent=4) }}{%- endfor %}"
    "{%- for message in messages %}{%- if not (message.role == 'ipython' or 'tool_calls' in message) %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>' }}{%- elif message.tool_calls|length != 1 %}"
    "{{- raise_exception('one tool call at a time') }}{%- endif %}{%- endfor %}",
    "{%- set ns = namespace(found=false, index=-1) %}{%- for m in messages[::-1] %}{%- set ns.index = loop.index0 %}"
    "{%- if m.content is string and not m.content.startswith('<tool>') and loop.first %}{%- set ns.found = true %}"
    "{%- endif %}{%- endfor %}{{ m.content.split('</think>')[-1].lstrip('\\n') if '</think>' in m.content else '' }}",
    "{%- macro json_to_type(spec, depth=0) -%}{%- if spec.type == 'array' -%}{{ 'list[' ~ json_to_type(spec['items'],"
    " depth + 1) ~ ']' }}{%- else -%}{{ spec.type | default('any', true) | upper }}{%- endif -%}{%- endmacro -%}"
    "{% for name, p in tool.parameters.properties.items() | sort %}{{ name }}: {{ json_to_type(p) }}{{ ', ' if not"
    " loop.last }}{% endfor %}{% generation %}{{ messages | selectattr('role', 'equalto', 'user') | map(attribute="
    "'content') | join('\\n') }}{% endgeneration %}{% set key = 'content_' ~ loop.index %}{{ message[key] }}",
    "{% for i in range(0, messages|length, 2) %}{{ messages[i].content }}{{ eos_token * 2 }}{% endfor %}",
)
HONEST_FILES = {
    "model.safetensors": make.safetensors({"format": "pt"}),
    "model.gguf": make.gguf({"general.name": "Llama\n2", "tokenizer.chat_template": HONEST[0]}, "token_embd.weight"),
    "config.json": make.config(architectures=["LlamaForCausalLM"], trust_remote_code=False, auto_map={}),
    "trainer_state.json": b'{"loss": NaN, "best": Infinity}',
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}).encode(),
    "sequential.json": json.dumps({"module": "keras.layers", "class_name": "Dense", "config": {}}).encode(),
    "model_config.yaml": b"encoder:\n  _target_: nemo.collections.asr.modules.ConformerEncoder\n  feat_in: 80\n",
    "array.npy": make.npy("'<f4'", bytes(4)),
    "record.npy": make.npy("[('a', '<f4'), ('b', '<U3', (2,))]", bytes(28)),
    "dates.npy": make.npy("'<M8[ns]'", bytes(8)),
    "arrays.npz": make.zipped({"a.npy": make.npy("'<f4'", bytes(4))}),
    "weights.tar": make.tarred({"a/model.safetensors": make.safetensors(), "a/README.md": b"text\n"}),
    "weights.tar.gz": gzip.compress(make.tarred({"a/model.safetensors": make.safetensors()}), mtime=0),
    "padded.gz": gzip.compress(make.PLAIN, mtime=0) + bytes(512),
    "plain.z": zlib.compress(make.PLAIN),
    "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(60),
    "modeling_x.py": b"import torch\n",
    "diarization.yaml": b"pipeline:\n  name: pyannote.audio.pipelines.SpeakerDiarization\n  params: {}\n",
    "lightning.yaml": b"optimizer:\n  class_path: torch.optim.AdamW\n  init_args:\n    lr: 0.1\n",
    "workflow.yml": b"on: push\njobs:\n  a:\n    with:\n      target: ${{ matrix.target }}\n",
    "help.yaml": b"examples:\n- |\n  To create:\n\n    $ {command} test --eval(x)\n",
    "schema-of-a-cloud.json": json.dumps({"/name": "$lowercase(Name)", "/id": "$split(Arn, ':')[-1]"}).encode(),
    "schema.json": json.dumps(
        {"__module__": "numpy.random.mtrand", "x": {"__module__": "sklearn.tree._tree"}}
    ).encode(),
    "modules.json": json.dumps([{"type": "sentence_transformers.models.Transformer"}]).encode(),
    "config_of_a_reranker.json": json.dumps({"activation_function": "gelu_new"}).encode(),
    "chat_template.jinja": HONEST[1].encode(),
    # The first byte is an opcode that imports a module, up to the end of the line.
    "config.tar": make.tarred({"config.json": b'{\n  "model_type": "llama"\n}\n'}),
    "init.tar": make.tarred({"init.txt": b"x\ny\n"}),
}


@pytest.mark.parametrize("name", HONEST_FILES)
def test_honest_files_are_data_only(name: str, tmp_path: Path) -> None:
    report = scanned(tmp_path, name, HONEST_FILES[name])
    assert (report.verdict, report.complete) == ("data-only", True), report.findings


@pytest.mark.parametrize("text", HONEST, ids=range(len(HONEST)))
def test_honest_templates_are_silent(text: str, tmp_path: Path) -> None:
    assert scanned(tmp_path, "tokenizer_config.json", make.template(text)).findings == ()


# ---- the tables -------------------------------------------------------------------------------------------------


def test_every_kind_is_scanned_or_named_with_the_reason() -> None:
    told = {kind for row in registry.SCANNERS for kind in row.kinds}
    through = {"nemo"}  # `kinds.kind_of` says which archive it is
    assert set(BUILT_IN) - told - through - registry.DATA == {"unknown"}
    assert told <= {*BUILT_IN, *CODECS, "storage"}


@pytest.mark.parametrize("kind", ["rar", "onnx", "pdf", "sqlite"])
def test_what_is_not_scanned_is_named(kind: str, tmp_path: Path) -> None:
    heads = {"rar": b"Rar!\x1a\x07\0", "pdf": b"%PDF-1.4", "sqlite": b"SQLite format 3\0",
             "onnx": make.onnx(b"location", b"weights.bin")}  # fmt: skip
    report = scanned(tmp_path, "x.bin", heads[kind] + bytes(80 if kind != "onnx" else 0))
    assert report.kind == kind
    assert (report.verdict, report.complete) == ("not-scanned", False)
    assert [n.why for n in report.skipped] == [unsupported.WHY[kind]]


@pytest.mark.parametrize(
    ("kind", "head"), [("7z", b"7z\xbc\xaf\x27\x1c"), ("zstd", b"\x28\xb5\x2f\xfd"), ("lz4", b"\x04\x22\x4d\x18")]
)
def test_without_its_package_an_archive_is_not_passed_silently(kind: str, head: bytes, tmp_path: Path) -> None:
    report = scanned(tmp_path, "x.bin", head + bytes(80))
    assert report.kind == kind
    assert report.verdict == ("not-scanned" if kind == "7z" else "unproven")
    told = [*(n.why for n in report.skipped), *(f.consequence for f in report.findings)]
    assert any("py7zr" in text or "weighbridge[archives]" in text for text in told)


def test_all_that_the_sandbox_guards_is_known() -> None:
    guarded = (
        sandbox.UNSAFE_FUNCTION_ATTRIBUTES | sandbox.UNSAFE_METHOD_ATTRIBUTES | sandbox.UNSAFE_GENERATOR_ATTRIBUTES
        | sandbox.UNSAFE_COROUTINE_ATTRIBUTES | sandbox.UNSAFE_ASYNC_GENERATOR_ATTRIBUTES
    )  # fmt: skip
    assert [name for name in guarded if not is_inner(name)] == []


@pytest.mark.mutation
@pytest.mark.parametrize("name", sorted(faults.FOREIGN))
def test_each_foreign_global_is_told_unless_it_is_set(name: str, tmp_path: Path) -> None:
    report = scanned(tmp_path, "a.jinja", f"{{{{ {name} }}}}".encode())
    assert [f.rule for f in report.findings] == ["template/foreign-global"]
    own = scanned(tmp_path, "b.jinja", f"{{% set {name} = 1 %}}{{{{ {name} }}}}".encode())
    assert own.findings == ()


@pytest.mark.mutation
@pytest.mark.parametrize("name", sorted(callables.BY_ATTRIBUTE))
def test_each_filter_by_attribute_is_looked_at(name: str, tmp_path: Path) -> None:
    report = scanned(tmp_path, "a.jinja", f"{{{{ x|{name}(attribute='__class__') }}}}".encode())
    assert "template/underscored" in {f.rule for f in report.findings}


@pytest.mark.mutation
@pytest.mark.parametrize("codec", sorted(CODECS.keys() - OF_PACKAGES))
def test_without_a_codec_its_streams_are_not_looked_into(
    codec: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = {"gzip": "model.pkl.gz", "bz2": "model.pkl.bz2", "xz": "model.pkl.xz", "lzma": "model.pkl.lzma",
             "zlib": "model.joblib"}  # fmt: skip
    v = next(v for v in VECTORS if v.name == names[codec])
    assert scan_vector(tmp_path, v).verdict == "dangerous"
    rest = {name: row for name, row in CODECS.items() if name != codec}
    monkeypatch.setattr("weighbridge.io.decompress.CODECS", rest)
    assert scan_vector(tmp_path, v).verdict != "dangerous"


# ---- places, limits ---------------------------------------------------------------------------------------------


def test_a_finding_names_the_way_into_the_archives(tmp_path: Path) -> None:
    inner = make.tarred({"a/model.pkl": make.PAYLOAD})
    report = scanned(tmp_path, "x.tgz", gzip.compress(inner, mtime=0))
    worst_one = report.findings[0]
    assert (worst_one.members, worst_one.rule) == (("(gzip)", "a/model.pkl"), "pickle/dangerous-call")
    plain = scanned(tmp_path, "x.tar", inner).findings[0]
    assert (plain.offset, plain.file_offset) == (21, 512 + 21)


def test_a_bomb_is_told_and_takes_little() -> None:
    work, bomb = engine._Scan(Budget(8 << 20)), gzip.compress(bytes(64 << 20), mtime=0)
    with traced_memory() as memory:
        work.scan_part(Part(BytesSource(bomb), MemberPath("x.gz"), work.budget))
    assert ([f.rule for *_, f in work.findings], bool(work.skipped)) == (["scan/limit"], True)
    assert memory.peak < 16 << 20


def test_code_that_a_config_names_is_looked_for_beside_it(tmp_path: Path) -> None:
    data = make.config(auto_map={"AutoModel": "modeling_x.Model"})
    lacks = scanned(tmp_path, "config.json", data).findings[0]
    has = scanned(tmp_path, "config.json", data, **{"modeling_x.py": b"1\n"}).findings[0]
    assert "modeling_x.py is not in the folder" in lacks.message
    assert "modeling_x.py exists" in has.message


def test_a_deep_template_and_a_deep_json_are_refused(tmp_path: Path) -> None:
    for text in (
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "not " * 5000 + "1 }}",
        "{{ " + "-" * 9999 + "1 }}",
    ):
        assert {f.rule for f in scanned(tmp_path, "a.jinja", text.encode()).findings} == {"template/unproven"}
    deep = b"[" * 100_000 + b"]" * 100_000
    assert {f.rule for f in scanned(tmp_path, "config.json", deep).findings} == {"config/unproven"}


@pytest.mark.parametrize("codec", sorted(CODECS.keys() - OF_PACKAGES))
def test_a_stream_that_is_damaged_from_its_start_is_no_error(codec: str, tmp_path: Path) -> None:
    heads = {"gzip": b"\x1f\x8b\x08", "bz2": b"BZh2\x80\2X", "xz": b"\xfd7zXZ\0",
             "lzma": b"\x5d\0\0\x80\0" + b"\xff" * 8,
             "zlib": b"x\x9c"}  # fmt: skip
    report = scanned(tmp_path, "x.bin", heads[codec] + b"\xff\x97" * 40)
    assert (report.verdict == "malformed") or not report.complete


def test_a_directory_entry_with_a_cut_off_extra_field_is_no_error(tmp_path: Path) -> None:
    data = bytearray(make.zipped({"/etc/x": b"x"}))
    entry = data.index(b"PK\1\2")
    data[entry + 46 : entry + 46 + 6] = b"\1\0\xff\xff\0\0"  # its name is now an extra field
    data[entry + 28 : entry + 32] = struct.pack("<HH", 0, 6)
    assert scanned(tmp_path, "x.zip", bytes(data)).verdict == "malformed"
