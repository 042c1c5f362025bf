"""Models of commands: the default, devices, adapters and drafts, and names that can be no model."""


import pytest

import lmc


@pytest.mark.parametrize(("options", "says"), [
    (("--adapter", "sql"), "--adapter sql: expected NAME=PATH"),
    (("--adapter", "=path"), "--adapter =path: expected NAME=PATH"),
    (("--adapter", "a=x", "--adapter", "a=y"), "two adapters have the name a"),
    (("--drafts", "many"), "'many' must be auto, off or a number of tokens from 1 to 64"),
    (("--drafts", "65"), "'65' must be auto, off or a number"),
    (("--drafts", "4", "--backend", "mock"), "--drafts is for models on this machine, and mock is not one"),
    (("--deterministic", "--backend", "mock"), "--deterministic is for models on this machine, and mock is not one"),
    (("--kv-dtype", "fp8", "--backend", "mock"), "--kv-dtype is for models on this machine, and mock is not one"),
    (("--kv-dtype", "int8"), "'int8' must be fp8"),
    (("--quantization", "fp8", "--backend", "mock"), "--quantization is for models on this machine, and mock is not one"),
    (("--quantization", "int3"), "'int3' must be fp8 or int4"),
    (("--draft-model", "nowhere"), "no model 'nowhere'"),
    (("--adapter", "a=x", "--backend", "mock"), "--adapter is for models on this machine, and mock is not one"),
])  # fmt: skip
def test_adapters_and_drafts_that_cannot_be_are_refused(lmc_cli, folder, options, says):
    for command in (("run", "prog.py:echo", "--arg", "text=x"), ("serve", "--port", "0")):
        code, _, err = lmc_cli(*command, *options)
        assert code == 2 and says in err


@pytest.mark.model
def test_options_of_models_are_those_of_the_engine(lmc_cli, monkeypatch):
    from lmc.backend import local_model

    given = []
    monkeypatch.setattr(local_model, "Engine", lambda _, **options: given.append(options) or lmc.Mock())
    options = {"quantization": "fp8", "kv-dtype": "fp8", "drafts": "3", "draft-model": "smollm2", "adapter": "a=b", "tp": "2", "dp": "3"}
    given_as = (word for name, text in options.items() for word in ("--" + name, text))
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", "smollm2", "--deterministic", *given_as)
    assert code == 0, err
    assert given == [{
        "device": "auto", "quantization": "fp8", "kv_dtype": "fp8", "drafts": 3, "draft_model": "smollm2", "adapters": {"a": "b"}, "tp": 2, "dp": 3,
        "deterministic": True,
    }]  # fmt: skip


def test_a_model_and_an_adapter_have_two_names(lmc_cli):
    code, _, err = lmc_cli("serve", "--port", "0", "--name", "sql", "--adapter", "sql=path")
    assert code == 2 and "the model and an adapter are both called sql; give the model another name by --name" in err


def test_the_model_of_the_settings_is_the_default(lmc_cli, monkeypatch):
    from lmc.config import reset

    monkeypatch.setenv("LMC_MODEL", "mock")
    reset()
    try:
        assert lmc_cli("run", "prog.py:echo", "-a", "text=x")[0] == 0
        monkeypatch.setenv("LMC_MODEL", "/nope.gguf")
        reset()
        code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x")
        assert code == 2 and "/nope.gguf" in err
        assert lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", "mock")[0] == 0
    finally:
        monkeypatch.delenv("LMC_MODEL")
        reset()


@pytest.mark.parametrize("name, words", [
    ("/nope", ["no model '/nope'", "no such file or folder", "GGUF", "config.json"]),
    ("nope/model.gguf", ["no such file or folder", "GGUF"]),
    ("smollm", ["did you mean smollm2"]),
    ("empty", ["the folder empty has no config.json", "tokenizer.json", "GGUF"]),
])
def test_what_can_be_no_model_is_refused_with_what_can(lmc_cli, folder, name, words):
    (folder / "empty").mkdir()
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "--backend", name)
    assert code == 2 and "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.model
@pytest.mark.parametrize("device", ["gpuu", "cuda:99", "meta"])
def test_wrong_device(lmc_cli, monkeypatch, device):
    from lmc.config import reset

    monkeypatch.setenv("LMC_DEVICE", device)
    reset()
    try:
        code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x")
    finally:
        monkeypatch.delenv("LMC_DEVICE")
        reset()
    assert code == 2 and err.startswith(f"error: LMC_DEVICE={device!r} is not a device") and "set it to cpu" in err
    assert len(err.splitlines()) == 1


@pytest.mark.model
@pytest.mark.parametrize("make, words", [
    (lambda p: None, ["model.gguf"]),
    (lambda p: p.write_bytes(b"not a model"), ["model.gguf", "GGUF"]),
    (lambda p: p.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 100), ["model.gguf"]),
], ids=["missing", "not GGUF", "damaged"])
def test_wrong_model_path(lmc_cli, folder, make, words):
    make(folder / "model.gguf")
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "--backend", "model.gguf")
    assert code == 2 and "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.model
def test_prompt_over_the_context(lmc_cli):
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=" + "word " * 9000)
    assert code == 1 and "Traceback" not in err
    assert "8192" in err and "prog.py" in err


@pytest.mark.parametrize("name, says", [("opneai:gpt", "did you mean openai:…?"), ("openai:", "names no model"), ("vllm:", "names no URL")])
def test_a_misspelt_service_is_refused_with_the_forms(lmc_cli, name, says):
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", name)
    assert code == 2 and says in err and "sglang:URL" in err


def test_warmup_prepares_a_model_of_this_process_only(lmc_cli):
    assert lmc_cli("warmup", "openai:gpt")[::2] == (2, "error: openai:gpt does not run in this process; only models that do can be warmed up\n")
    code, _, err = lmc_cli("warmup", "/nowhere.gguf")
    assert code == 2 and "there is no such file or folder" in err
