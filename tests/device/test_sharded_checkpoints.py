"Checkpoints of a sharded model in which each process has written its shards (torch.distributed.checkpoint, in safetensors files)."
import json, os

import pytest, torch

import sharded
from sharded import make, same_run
from trainer_nb import Learner

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("launch"), pytest.mark.filterwarnings("ignore:.*Converting a tensor")]
SHARDS = {"state_dict_type": "SHARDED_STATE_DICT"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    "A run with checkpoints after steps 5 and 10, and its folder; each test copies it."
    folder = tmp_path_factory.mktemp("shards")
    learn = make(output_dir=str(folder), save_strategy="steps", save_steps=5, fsdp_config=SHARDS)
    learn.launch(2, train=True)
    return learn, folder


@pytest.fixture
def folder(written, tmp_path):
    import shutil
    shutil.copytree(written[1], tmp_path / "copy")
    return tmp_path / "copy"


def test_no_process_writes_more_than_its_shards(written):
    learn, folder = written
    found = {p.relative_to(folder / "checkpoint-5").as_posix(): p.stat().st_size for p in (folder / "checkpoint-5").rglob("*") if p.is_file()}
    assert not any(name.startswith("model") for name in found) and not list(folder.glob(".*"))
    shards = [size for name, size in found.items() if name.startswith("shards/")]
    weights = sum(t.nbytes for t in learn.model.state_dict().values())
    assert len(shards) == 2 and max(shards) < 2 * weights + 8000   # of three times the weights, half each; the rest are names
    names = json.loads((folder / "checkpoint-5" / "run.json").read_text())["shards"]
    assert names["weights/inward.weight"] == ["float32", [15, 8]]


@pytest.mark.parametrize("config", [SHARDS, pytest.param({}, marks=pytest.mark.slow), pytest.param(SHARDS | {"cpu_offload": True, "reshard_after_forward": False}, marks=pytest.mark.slow)])
def test_going_on_in_as_many_processes_is_exact(written, folder, config):
    again = make(output_dir=str(folder), save_strategy="no", fsdp_config=config)
    with again.launch(2):
        assert again.load_checkpoint(folder / "checkpoint-5").step == 5
        again.train()
    same_run(written[0], again)


def test_going_on_in_another_number_of_processes(written, folder):
    "In one, with the whole model, and in three; the numbers change in the last bits, or with the division of the batches."
    whole = make(output_dir=str(folder), save_strategy="no", fsdp=None, per_device_train_batch_size=8)
    with pytest.warns(UserWarning, match="processes 2 then, 1 now"): assert whole.load_checkpoint(folder / "checkpoint-10").step == 10
    whole.train()
    assert whole.evaluate()["eval_loss"] == pytest.approx(written[0].evaluate()["eval_loss"], rel=0.05)


def test_three_processes_write_and_two_copies_read(folder, tmp_path):
    three = make(output_dir=str(folder), save_strategy="no", fsdp_config=SHARDS)
    with three.launch(3):
        three.load_checkpoint(folder / "checkpoint-5")
        three.step(1)
        three.save_checkpoint(tmp_path / "six")
        weights = three.model.state_dict() if not three.run_state.parts.remote_run else three.snapshot().tensors
    copies = make(output_dir=str(tmp_path / "out"), save_strategy="no", fsdp="hybrid_shard", fsdp_config=SHARDS | {"dp_shard_size": 2})
    with copies.launch(4):
        copies.load_checkpoint(tmp_path / "six")
        there = copies.snapshot().tensors
        copies.save_checkpoint(tmp_path / "again")
        copies.train()
    assert all(torch.equal(t, there[n]) for n, t in weights.items() if n.startswith(("weights/", "optimizer/")))
    assert len(list((tmp_path / "again" / "shards").iterdir())) == 4


def test_the_best_one_comes_back(tmp_path):
    learn = make(output_dir=str(tmp_path), save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True, fsdp_config=SHARDS)   # the first epoch's
    with learn.launch(2):
        learn.train()
        assert learn.evaluate()["eval_loss"] == learn.state.best_metric and learn.state.best_global_step < 18


def test_a_file_that_is_missing_is_named(folder):
    next((folder / "checkpoint-5" / "shards").iterdir()).unlink()
    again = make(output_dir=str(folder), save_strategy="no", fsdp_config=SHARDS)
    with again.launch(2), pytest.raises(ValueError, match="shards/shard-0000"): again.load_checkpoint(folder / "checkpoint-5")


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    "The error names the cause and what is left; the run goes on, and the next save succeeds."
    learn = make(output_dir=str(tmp_path), save_strategy="no", fsdp_config=SHARDS)
    with learn.launch(2, start="fork"):
        learn.step(1)
        learn.run_on_all(full_disk)
        with pytest.raises(Exception, match=r"checkpoint-1 could not be written .*No space left"): learn.save_checkpoint()
        learn.run_on_all(enough_space)
        assert learn.step(1)[0].step == 2 and learn.save_checkpoint().is_dir()
    assert not list(tmp_path.glob(".*"))


def full_disk(learn):
    from torch.distributed.checkpoint import hf_storage
    def failing(self, plan, planner): raise OSError(28, "No space left on device")
    learn.not_full, hf_storage.HuggingFaceStorageWriter.write_data = hf_storage.HuggingFaceStorageWriter.write_data, failing


def enough_space(learn):
    from torch.distributed.checkpoint import hf_storage
    hf_storage.HuggingFaceStorageWriter.write_data = learn.not_full


class Own(Learner):
    "Writes a file beside the model, as scripts for the Trainer do."
    def save_model(self, output_dir=None, _internal_call=False):
        super().save_model(output_dir, _internal_call)
        if os.environ.get("RANK", "0") == "0":
            with open(os.path.join(output_dir, "mine.txt"), "w") as f: f.write("mine")


@pytest.mark.parametrize("config", [{}, pytest.param(SHARDS, marks=pytest.mark.slow)])
def test_an_override_of_save_model_is_called_in_all_processes(tmp_path, monkeypatch, config):
    "It gathers the weights, so one process alone would wait for the others."
    monkeypatch.setattr(sharded, "Learner", Own)
    learn = make(output_dir=str(tmp_path), save_strategy="steps", save_steps=2, max_steps=4, eval_strategy="no", fsdp_config=config, ddp_timeout=60)
    with learn.launch(2): learn.train()
    assert {"mine.txt", "model.safetensors", "run.json"} <= {p.name for p in (tmp_path / "checkpoint-2").iterdir()}
