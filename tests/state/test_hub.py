"Pushing to the Hub and resuming from there, against a small server of its interface; the Trainer pushes to the same server."
import os, signal, subprocess, sys, threading, time, warnings
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
from huggingface_hub import constants
from hub_server import TOKEN, HubServer
from trainer_nb import InvalidOperation, Learner, TrainerCallback, TrainingArguments, differences
from trainer_nb.state.hub import PushFailed

def SLOW(*values): return pytest.param(*values, marks=pytest.mark.slow)

pytestmark = [pytest.mark.trainer, pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(120)]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path/"cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path/"token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # for processes that are started anew
    for name, value in dict(HF_TOKEN=TOKEN, HF_ENDPOINT=server.endpoint, HF_HUB_DISABLE_XET="1").items(): monkeypatch.setenv(name, value)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
    yield server
    server.close()


def model():
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, max_position_embeddings=8))


def rows(n=16):
    g = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 20, (5,), generator=g), "labels": i % 2} for i in range(n)]


SETTINGS = dict(use_cpu=True, disable_tqdm=True, report_to="none", max_steps=6, save_steps=2, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=2)


def make(folder, callbacks=None, **changes):
    return Learner(model(), train_dataset=rows(), eval_dataset=rows(8), callbacks=callbacks, output_dir=str(folder), **SETTINGS | {"push_to_hub": True} | changes)


def theirs(folder, callbacks=None, **changes):
    args = transformers.TrainingArguments(output_dir=str(folder), **SETTINGS | {"push_to_hub": True} | changes)
    return transformers.Trainer(model(), args, train_dataset=rows(), eval_dataset=rows(8), callbacks=callbacks)


def contents(folder):
    folder = Path(folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Patient(TrainerCallback, transformers.TrainerCallback):
    "Waits until a checkpoint is pushed, so that none is skipped; the same for both sides."
    def __init__(self, of): self.of = of
    def on_step_end(self, args, state, control, **kwargs):
        if self.of and self.of[0].push_in_progress is not None: self.of[0].push_in_progress.wait_until_done()


def patient(make, *args, **kwargs):
    of = []
    learn = make(*args, callbacks=[Patient(of)], **kwargs)
    of.append(learn)
    return learn


# ---- the four strategies

OURS = {"training_args.json", "manifest.json", "rest.json", "rest.safetensors", "README.md"}


def made(hub, side):
    "Message and files of each commit, without what only one side has, and that is known."
    found = []
    for c in hub.commits:
        paths = {p for p in c.paths if p.split("/")[-1] not in OURS | {"training_args.bin"} and not p.startswith("runs/")}
        found.append((c.repo.replace(side, ""), c.revision, c.message, paths))
    hub.commits.clear()
    return found


@pytest.mark.parametrize("strategy, saves", [("end", "steps"), ("every_save", "steps"), ("checkpoint", "steps"), ("all_checkpoints", "steps"), SLOW("checkpoint", "epoch")])
def test_the_commits_are_the_trainers(hub, tmp_path, strategy, saves):
    saves = dict(save_strategy=saves)
    first = patient(theirs, tmp_path/"theirs", hub_strategy=strategy, **saves)
    first.train()
    wanted = made(hub, "theirs")
    mine = patient(make, tmp_path/"ours", hub_strategy=strategy, save_format="trainer", **saves)
    assert (mine.hub_model_id, first.hub_model_id) == ("me/ours", "me/theirs")
    mine.train()
    assert made(hub, "ours") == wanted and len(wanted) == {"end": 0, "every_save": 1}.get(strategy, 2) * (3 if saves["save_strategy"] == "steps" else 2)
    for learn in (first, mine):
        info = learn.push_to_hub("All of it", tags="small", language="en")
        assert info.commit_url.startswith(f"{hub.endpoint}/{learn.hub_model_id}/commit/")
    assert {c.message for c in hub.commits if "ours" in c.repo} <= {"All of it"}
    there, at_home = hub.files("me/theirs"), hub.files("me/ours")
    assert set(there) - set(at_home) == {p for p in there if p.endswith("training_args.bin")}
    assert {p.split("/")[-1] for p in set(at_home) - set(there)} <= OURS | {p.split("/")[-1] for p in at_home if p.startswith("runs/")}


def test_the_events_are_the_trainers(hub, tmp_path):
    heard = {}
    class Told(TrainerCallback, transformers.TrainerCallback):
        def __init__(self, name): self.name = name
        def on_save(self, args, state, control, **kwargs): heard.setdefault(self.name, []).append(("save", state.global_step))
        def on_push_begin(self, args, state, control, **kwargs): heard.setdefault(self.name, []).append(("push", state.global_step))
        def on_train_end(self, args, state, control, **kwargs): heard.setdefault(self.name, []).append(("end", state.global_step))
    for name, side in (("theirs", theirs), ("ours", make)):
        of = []
        learn = side(tmp_path/name, callbacks=[Told(name), Patient(of)])
        of.append(learn)
        learn.train()
        learn.push_to_hub()
        learn.save_model()
    assert heard["ours"] == heard["theirs"] and heard["ours"].count(("push", 6)) == 3


def test_the_files_are_those_of_the_checkpoints(hub, tmp_path):
    "Each file is there byte for byte, also of the checkpoints that were deleted meanwhile."
    kept = make(tmp_path/"kept", push_to_hub=False)
    kept.train()
    learn = make(tmp_path/"out", hub_strategy="all_checkpoints", hub_always_push=True, save_total_limit=1)
    hub.gate.clear()
    release = threading.Timer(0.5, hub.gate.set)
    class Later(TrainerCallback):
        def on_train_end(self, *args, **kwargs): release.start()
    learn.add_callback(Later())
    learn.train()
    assert sorted(p.name for p in (tmp_path/"out").glob("checkpoint-*")) == ["checkpoint-6"] and not (tmp_path/"out"/"_push").exists()
    assert hub.messages() == [f"Training in progress, step {i}{more}" for i in (2, 4, 6) for more in ("", ", checkpoint")]
    there = hub.files("me/out")
    for name in ("config.json", "model.safetensors", "optimizer.safetensors", "rest.safetensors"):
        for i in (2, 4, 6):
            assert there[f"checkpoint-{i}/{name}"] == (tmp_path/"kept"/f"checkpoint-{i}"/name).read_bytes(), name
    assert {p: c for p, c in there.items() if p.startswith("checkpoint-6/")} == {f"checkpoint-6/{p}": c for p, c in contents(tmp_path/"out"/"checkpoint-6").items()}
    assert there["model.safetensors"] == there["checkpoint-6/model.safetensors"]


# ---- slow and failing pushes

@pytest.mark.parametrize("side", [theirs, make])
def test_a_slow_push_is_not_waited_for(hub, tmp_path, side):
    "The later saves are skipped, and the loop goes on: the same bytes as without a push."
    steps = []
    class Watch(TrainerCallback, transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            # the first checkpoint is on its way before the next step
            if state.global_step == 3: assert hub.arrived.wait(10)
            steps.append(state.global_step)
        def on_train_end(self, *args, **kwargs):
            assert not hub.commits
            hub.gate.set()
    hub.gate.clear()
    learn = side(tmp_path/"out", callbacks=[Watch()])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        learn.train()
    assert steps == [1, 2, 3, 4, 5, 6] and hub.messages() == ["Training in progress, step 2"]
    said = [str(w.message) for w in said if "push" in str(w.message)]
    if side is make:
        assert len(said) == 2 and "checkpoint-4 is not pushed to the Hub, because checkpoint-2 is still being pushed; with hub_always_push=True" in said[0]
        assert "checkpoint-6 was not pushed to the Hub; learn.push_to_hub()" in said[1]
    other = side(tmp_path/"other", push_to_hub=False)
    other.train()
    assert [l.get("loss") for l in learn.state.log_history] == [l.get("loss") for l in other.state.log_history]
    assert all(torch.equal(a, b) for a, b in zip(learn.model.state_dict().values(), other.model.state_dict().values()))
    for i in (2, 4, 6):
        assert (tmp_path/"out"/f"checkpoint-{i}"/"model.safetensors").read_bytes() == (tmp_path/"other"/f"checkpoint-{i}"/"model.safetensors").read_bytes()
    if side is make: assert differences(learn.snapshot(), other.snapshot()) == ["args"]   # the folder, and whether it is pushed


@pytest.mark.parametrize("status", [500, SLOW(401), SLOW(403), SLOW(404)])
def test_a_failed_push_is_said_and_repeated(hub, tmp_path, status):
    left = [1]
    hub.fail = lambda method, path: status if "/commit/" in path and left and left.pop() else None
    learn = patient(make, tmp_path/"out", hub_strategy="all_checkpoints")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        learn.train()
    said = [str(w.message) for w in said if "pushed" in str(w.message)]
    assert len(said) == 1 and said[0].startswith(f"checkpoint-2 could not be pushed to the Hub ({status}") and "learn.push_to_hub()" in said[0]
    assert {401: "`hf auth login`", 403: "settings/tokens", 404: "learn.init_hf_repo()", 500: "failed; try again later"}[status] in said[0]
    assert "\n" not in said[0]
    # the first one is contained in the second
    assert hub.messages() == ["Training in progress, step 2, checkpoint"] + [f"Training in progress, step {i}{more}" for i in (4, 6) for more in ("", ", checkpoint")]
    other = make(tmp_path/"other", push_to_hub=False)
    other.train()
    assert differences(learn.snapshot(), other.snapshot()) == ["args"]   # the folder, and whether it is pushed
    assert hub.files("me/out")["checkpoint-2/model.safetensors"] == (tmp_path/"other"/"checkpoint-2"/"model.safetensors").read_bytes()


def test_the_last_push_fails(hub, tmp_path):
    "train() returns all the same; push_to_hub() raises one sentence, and pushes everything when the Hub is well again."
    hub.fail = lambda method, path: 500 if "/commit/" in path else None
    learn = make(tmp_path/"out", hub_strategy="all_checkpoints", save_steps=6)
    with pytest.warns(UserWarning, match="checkpoint-6 could not be pushed") as said: assert learn.train().global_step == 6
    assert "huggingface_hub.upload_folder() pushes the folder checkpoint-6 again" in str(said[-1].message)
    with pytest.raises(PushFailed, match="The model could not be pushed to the Hub .500 for .* failed; try again later") as error: learn.push_to_hub()
    assert "\n" not in str(error.value)
    with pytest.warns(UserWarning, match="The model could not be pushed"): assert isinstance(learn.push_to_hub(blocking=False).exception(), PushFailed)
    hub.fail = lambda method, path: None
    learn.push_to_hub("At last")
    assert hub.messages() == ["At last"] and not (tmp_path/"out"/"_push").exists()
    assert hub.files("me/out")["model.safetensors"] == (tmp_path/"out"/"checkpoint-6"/"model.safetensors").read_bytes()


def test_warnings_as_errors_stop_nothing(hub, tmp_path):
    hub.fail = lambda method, path: 500 if "/commit/" in path else None
    learn = patient(make, tmp_path/"out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert learn.train().global_step == 6


def test_an_interrupt_ends_the_waiting(hub, tmp_path, capsys):
    class Press(TrainerCallback):
        def on_train_end(self, *args, **kwargs): threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    hub.gate.clear()
    learn = make(tmp_path/"out", save_steps=6, callbacks=[Press()])
    assert learn.train().global_step == 6 and not hub.commits
    out = capsys.readouterr().out
    assert f"Waiting for checkpoint-6 to be pushed to {hub.endpoint}/me/out" in out and "The push goes on in the background" in out
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt, match="goes on in the background"): learn.push_to_hub("Interrupted")
    hub.gate.set()
    learn.push_to_hub("Again", tags="new")
    assert hub.messages()[0] == "Training in progress, step 6" and hub.messages()[-1] == "Again"
    assert "new" in hub.files("me/out")["README.md"].decode()


# ---- the repository

def test_what_is_missing_is_said_when_the_learner_is_made(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PushFailed, match="HF_HUB_OFFLINE=1 keeps huggingface_hub offline"): make(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(PushFailed, match="401 for me/x.*hf auth login"): make(tmp_path, hub_token="wrong", hub_model_id="me/x")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PushFailed, match="the access token is missing.*`hf auth login`"): make(tmp_path)
    make(tmp_path, hub_token=TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PushFailed, match="http://127.0.0.1:9 cannot be reached"): make(tmp_path, hub_token=TOKEN)
    with pytest.warns(UserWarning, match="hub_strategy='end' has no effect"): TrainingArguments(hub_strategy="end")
    with pytest.warns(UserWarning, match="save_strategy='no' writes none"): TrainingArguments(str(tmp_path), push_to_hub=True, save_strategy="no", hub_strategy="checkpoint")


def test_name_privacy_and_branch(hub, tmp_path, capsys):
    learn = make(tmp_path/"out", hub_model_id="org/name", hub_private_repo=True, hub_revision="dev")
    assert learn.hub_model_id == "org/name" and hub.private["org/name"] and f"pushed to {hub.endpoint}/org/name (hub_strategy='every_save')" in capsys.readouterr().out
    learn.train()
    assert {c.revision for c in hub.commits} == {"dev"} and not hub.files("org/name")
    learn.push_to_hub(revision="main")
    assert set(hub.files("org/name")) == set(hub.files("org/name", "dev"))
    with pytest.raises(PushFailed, match="org/name has no such branch"): learn.push_to_hub(revision="nowhere")


def test_the_token_is_written_nowhere(hub, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    args = TrainingArguments(str(tmp_path/"out"), hub_token=TOKEN, hub_strategy="checkpoint", **SETTINGS, push_to_hub=True)
    assert TOKEN not in repr(args) + args.to_json_string() + args._repr_html_() + str(args.to_dict()) and args.hub_token == TOKEN
    assert TrainingArguments.from_dict(args.to_dict()).hub_token is None
    learn = Learner(model(), args, train_dataset=rows())
    learn.train()
    learn.push_to_hub()
    learn.set(learning_rate=1e-3)
    learn.reset()
    assert learn.args.hub_token is None and len(hub.commits) > 2
    for name, content in [*contents(tmp_path/"out").items(), *hub.files("me/out").items()]: assert TOKEN.encode() not in content, name


def of_the_users_arguments(learn, args): args.hub_token = TOKEN
def of_the_learners_arguments(learn, args): learn.args.hub_token = TOKEN
def of_other_arguments(learn, args): learn.args = TrainingArguments(**learn.args.to_dict() | {"hub_token": TOKEN})
def by_set(learn, args): learn.set(hub_token=TOKEN)
def by_set_with_an_older_name(learn, args): learn.set(push_to_hub_token=TOKEN, logging_steps=1)
def by_branch(learn, args): return learn.branch(hub_token=TOKEN)
def by_branch_with_an_older_name(learn, args): return learn.branch(push_to_hub_token=TOKEN, push_to_hub=True, hub_model_id="me/b")
def of_a_branch(learn, args):
    learn.set(hub_token=TOKEN)
    return learn.branch(learning_rate=1.)


@pytest.mark.parametrize("give", [of_the_users_arguments, of_the_learners_arguments, of_other_arguments, by_set, by_set_with_an_older_name,
                                  by_branch, by_branch_with_an_older_name, of_a_branch])
def test_a_token_that_is_given_later_is_used_and_written_nowhere(hub, tmp_path, monkeypatch, give):
    "Checkpoints, logs, what is pushed, what is shown, and what trackers get."
    monkeypatch.delenv("HF_TOKEN")
    args = TrainingArguments(str(tmp_path/"out"), **SETTINGS | {"report_to": "tensorboard"})
    fails = []
    class Fail(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            if fails: raise ValueError(f"no access with {fails.pop()}")
    origin = Learner(model(), args, train_dataset=rows(), callbacks=[Fail()])
    if give is not of_the_users_arguments: origin.step()
    learn = give(origin, args) or origin
    learn.train()
    learn.push_to_hub()
    learn.save_checkpoint(tmp_path/"by hand")
    learn.reset()
    fails.append(TOKEN)
    with pytest.raises(ValueError, match="no access with"): learn.step()
    learn.history.flush()
    origin.history.flush()
    shown = [repr(o) for o in (learn, learn.args, learn.journal, origin.journal, learn.run_state.parts.uploader, learn.history, learn.snapshot().values)]
    for name, content in [*contents(tmp_path).items(), *((repo, file) for repo in hub.trees for file in hub.files(repo).values()), *((text, text.encode()) for text in shown)]:
        assert TOKEN.encode() not in content, name
    assert hub.commits and learn.args.hub_token is None


def test_tokens_of_a_subclass_are_written_nowhere(tmp_path):
    from dataclasses import dataclass
    @dataclass
    class Args(TrainingArguments):
        service_token: str | None = None
    args = Args(str(tmp_path), service_token=TOKEN, **SETTINGS | {"report_to": "tensorboard"})
    assert TOKEN not in repr(args) + args.to_json_string() + args._repr_html_() + str(args.to_dict()) + str(args.to_sanitized_dict())
    assert Args.from_dict(args.to_dict()).service_token is None
    learn = Learner(model(), args, train_dataset=rows())
    learn.train()
    learn.reset()
    assert learn.args.service_token == TOKEN
    learn.create_model_card()
    learn.history.flush()
    for name, content in contents(tmp_path).items(): assert TOKEN.encode() not in content, name


EXPORT = """
import torch
from trainer_nb import Learner
def made(): return Learner(torch.nn.Linear(2, 1), train_dataset=[(torch.ones(2), torch.ones(1))] * 8, loss_func=torch.nn.functional.mse_loss, use_cpu=True, output_dir="out",
                           max_steps=2, disable_tqdm=True, report_to="none", hub_token="hf_secret")
learn = LINE
learn.train()
learn.export_script("again.py")
"""


@pytest.mark.parametrize("line", ["made()", EXPORT.partition("return ")[2].partition("\nlearn")[0]])
def test_the_token_is_not_in_an_exported_script(tmp_path, line):
    (tmp_path/"script.py").write_text(EXPORT.replace("LINE", line))
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, check=True, timeout=100)
    (tmp_path/"script.py").unlink()
    assert (tmp_path/"again.py").exists()
    for name, content in contents(tmp_path).items(): assert b"hf_secret" not in content, name
    subprocess.run([sys.executable, "again.py"], cwd=tmp_path, env=env, check=True, timeout=100)


def test_a_token_of_another_type_is_not_shown(tmp_path):
    learn = make(tmp_path, push_to_hub=False)
    for call in (lambda: learn.set(hub_token=TOKEN.encode()), lambda: learn.branch(hub_token=TOKEN.encode()), lambda: learn.push_to_hub(token=TOKEN.encode()),
                 lambda: TrainingArguments(hub_token=TOKEN.encode())):
        with pytest.raises((TypeError, ValueError), match="token") as error: call()
        assert TOKEN not in str(error.value)


def test_on_request_without_push_to_hub(hub, tmp_path):
    "As with the Trainer: the repository is made by the first push."
    learn = make(tmp_path/"out", push_to_hub=False, hub_model_id="mine")
    assert learn.hub_model_id == "mine" and learn.push_in_progress is None
    learn.train()
    assert not hub.trees and not hub.commits
    future = learn.push_to_hub(blocking=False, private=True)
    assert learn.wait() is None and future.done() and future.result().commit_message == "End of training" and learn.hub_model_id == "me/mine" and hub.private["me/mine"]
    learn.save_model()
    assert hub.messages() == ["End of training"]
    with pytest.raises(TypeError, match="licence"): learn.push_to_hub(licence="mit")


def test_a_failed_push_of_a_saved_model_is_a_warning(hub, tmp_path):
    learn = make(tmp_path/"out", hub_strategy="end")
    hub.fail = lambda method, path: 403 if "/commit/" in path else None
    with pytest.warns(UserWarning, match="The model could not be pushed"): assert learn.save_model() == tmp_path/"out"
    hub.fail = lambda method, path: None
    learn.save_model(str(tmp_path/"elsewhere"))
    assert hub.messages() == ["Model save"]


def test_a_branch_and_trials_do_not_push_into_the_repository(hub, tmp_path):
    learn = make(tmp_path/"out", hub_always_push=True)
    learn.step(3)
    learn._finish_current_push()
    with pytest.warns(UserWarning, match="hub_model_id='owner/name'"): branch = learn.branch(output_dir=str(tmp_path/"branch"))
    branch.train()
    branch.save_model()
    assert hub.messages() == ["Training in progress, step 2"] and branch.hub_model_id is None
    branch.push_to_hub("By hand")
    assert branch.hub_model_id == f"me/{branch.history.run_id}" and hub.files(branch.hub_model_id)
    own = learn.branch(output_dir=str(tmp_path/"own"), hub_model_id="own")
    own.train()
    own.save_model()
    assert "me/own" in {c.repo for c in hub.commits} and {c.message for c in hub.commits if c.repo == "me/out"} == {"Training in progress, step 2"}
    learn.train()
    assert hub.messages().count("Training in progress, step 6") == 2


@pytest.mark.parametrize("pushes", [False, True])
def test_where_a_branch_is_pushed(hub, tmp_path, pushes):
    "Never to the place of its origin, under whatever name."
    learn = make(tmp_path/"out", push_to_hub=pushes, hub_model_id=None if pushes else "me/out", save_strategy="no")
    learn.step()
    learn.push_to_hub("The origin")
    origin = hub.files("me/out")
    for changes in ({}, {"hub_model_id": "me/out"}, {"hub_model_id": "out"}):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            branch = learn.branch(learning_rate=1., **changes)
        if pushes: assert [w for w in said if "is not pushed to the Hub while it is trained" in str(w.message)] and not branch.args.push_to_hub
        branch.step()
        branch.save_model()
        branch.push_to_hub()
        assert hub.files("me/out") == origin and branch.hub_model_id == f"me/{branch.history.run_id}", changes
    with pytest.raises(ValueError, match="hub_model_id='owner/name' gives the branch one"): learn.branch(hub_revision="other")


def test_the_trials_of_a_search_push_nothing(hub, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.delenv("HF_TOKEN")
    class Saves(TrainerCallback):
        def on_train_end(self, args, state, control, learner=None, **kwargs): learner.save_model()
    learn = make(tmp_path/"out", hub_token=TOKEN, callbacks=[Saves()], eval_strategy="steps", eval_steps=3)
    hub.requests.clear()
    learn.hyperparameter_search(lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-2)}, n_trials=2)
    assert not hub.requests and not hub.commits
    learn.train()
    assert hub.messages()


def test_another_name_is_another_repository(hub, tmp_path, capsys):
    "Before the run begins, which opens it."
    learn = make(tmp_path/"out")
    learn.hub_model_id = "me/other"
    learn.step(3)
    learn.wait()
    assert learn.hub_model_id == "me/other" and f"is pushed to {hub.endpoint}/me/other" in capsys.readouterr().out
    assert {c.repo for c in hub.commits} == {"me/other"}
    with pytest.raises((ValueError, InvalidOperation), match="hub_model_id"): learn.hub_model_id = "me/third"
    assert learn.hub_model_id == "me/other" == learn.args.hub_model_id


@pytest.mark.parametrize("of", ["the learner's arguments", SLOW("the user's arguments")])
def test_a_run_is_pushed_from_when_it_is_to_be(hub, tmp_path, capsys, of):
    args = TrainingArguments(str(tmp_path/"out"), **SETTINGS)
    learn = Learner(model(), args, train_dataset=rows())
    assert not hub.requests
    (learn.args if of == "the learner's arguments" else args).push_to_hub = True
    hub.fail = lambda method, path: 401
    with pytest.raises(PushFailed, match="The repository out is not ready .401"): learn.train()
    hub.fail = lambda method, path: None
    assert learn.train().global_step == 6 and hub.messages()[-1].startswith("Training in progress, step")
    assert capsys.readouterr().out.count(f"The run is pushed to {hub.endpoint}/me/out") == 1


def test_a_push_that_is_cancelled(hub, tmp_path):
    "Before it has begun: nothing waits for it. One that has begun cannot be cancelled."
    hub.gate.clear()
    learn = make(tmp_path/"out", push_to_hub=False, save_strategy="no")
    first = learn.push_to_hub("First", blocking=False)
    assert hub.arrived.wait(10)
    second = learn.push_to_hub("Second", blocking=False)
    assert second.cancel() and not first.cancel()
    hub.gate.set()
    assert first.result(20).commit_message == "First" and second.cancelled()
    learn.push_to_hub("Third", tags="new")
    assert hub.messages() == ["First", "Third"] and not (tmp_path/"out"/"_push").exists()
    assert learn.push_in_progress.is_done() and learn.train().global_step == 6


def test_saving_does_not_hold_the_run_while_it_is_pushed(hub, tmp_path):
    "Another thread trains meanwhile."
    learn = Learner(model(), train_dataset=rows(), output_dir=str(tmp_path/"out"), **SETTINGS | {"push_to_hub": True, "hub_strategy": "end", "save_strategy": "no"})
    learn.step()
    hub.gate.clear()
    saves = threading.Thread(target=learn.save_model)
    saves.start()
    assert hub.arrived.wait(20)
    assert learn.step(2)[-1].step == 3 and saves.is_alive()
    hub.gate.set()
    saves.join(20)
    assert hub.messages() == ["Model save"]
    # the card and the weights are of the same step
    assert "after 1 optimizer steps" in hub.files("me/out")["README.md"].decode()
    assert learn.save_model(tmp_path/"elsewhere") == tmp_path/"elsewhere" and hub.messages()[1:] == ["Model save"]
    assert hub.files("me/out")["model.safetensors"] == (tmp_path/"elsewhere"/"model.safetensors").read_bytes()


def test_a_saved_model_is_there_whatever_happens_to_its_push(hub, tmp_path, monkeypatch):
    from trainer_nb.state import hub as module
    learn = make(tmp_path/"out", hub_strategy="end")
    def full(*args, **kwargs): raise OSError(28, "No space left on device")
    with monkeypatch.context() as m:
        m.setattr(module, "add_model", full)
        with pytest.warns(UserWarning, match="The model is saved, and was not pushed to the Hub .OSError: .*No space left"): assert learn.save_model() == tmp_path/"out"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    learn.run_state.parts.uploader.repo_id = None
    with pytest.warns(UserWarning, match="is not ready .HF_HUB_OFFLINE=1"): learn.save_model()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    called = []
    class Own(Learner):
        def push_to_hub(self, commit_message="End of training", blocking=True, token=None, revision=None, **kwargs): called.append((commit_message, revision))
    for side in (Own, type("Own", (transformers.Trainer,), {"push_to_hub": Own.push_to_hub})):
        settings = SETTINGS | {"push_to_hub": True, "output_dir": str(tmp_path/"own"), "hub_revision": "dev"}
        given = settings if side is Own else {"args": transformers.TrainingArguments(**settings)}
        side(model(), train_dataset=rows(), **given).save_model()
    assert called == [("Model save", "dev")] * 2 and not hub.commits


def test_no_folders_of_this_machine_beside_the_model(hub, tmp_path):
    "The log and the files of a checkpoint name them; a loader finds the other settings."
    learn = patient(make, tmp_path/"out", logging_dir=str(tmp_path/"logs"), resume_from_checkpoint=str(tmp_path/"old"))
    learn.train()
    learn.push_to_hub()
    there = hub.files("me/out")
    for name in there:
        if not name.startswith("runs/"): assert str(tmp_path).encode() not in there[name], name
    (tmp_path/"read").mkdir()
    (tmp_path/"read"/"training_args.json").write_bytes(there["training_args.json"])
    args = TrainingArguments.from_file(tmp_path/"read")
    assert (args.learning_rate, args.max_steps, args.output_dir, args.logging_dir) == (1e-2, 6, None, None)


def test_the_models_of_wandb_are_not_pushed(hub, tmp_path, monkeypatch):
    from trainer_nb.live.reporting import ReportCallback, WandBModelCallback
    from trainer_nb.live.trackers import WandB
    class Silent(WandB):
        def __init__(self): self.run = None
        def open(self, about): pass
        def log(self, logs, step): pass
        def close(self): pass
    sent = []
    class Model(WandBModelCallback):
        def upload(self, args, state, learner, send): sent.append(state.global_step)
    def train(folder, *callbacks):
        learn = make(tmp_path/folder, callbacks=callbacks, hub_strategy="end", save_strategy="no")
        learn.train()
        return learn
    train("out", ReportCallback(Silent()), Model())
    assert sent == [6] and not hub.commits and not (tmp_path/"out"/"model.safetensors").exists()
    # switched off, or not there: nothing is saved at all
    saved = []
    monkeypatch.setattr(Learner, "_save", lambda self, *args, **kwargs: saved.append(args))
    class Fails(Silent):
        def log(self, logs, step): raise ConnectionError("closed")
    with pytest.warns(UserWarning, match="closed"): train("failed", ReportCallback(Fails()), WandBModelCallback())
    train("none", WandBModelCallback())
    assert not saved and not hub.commits


# ---- the model card

def test_the_model_card(hub, tmp_path):
    import datasets, yaml
    data = datasets.Dataset.from_list(rows())
    data.info.builder_name, data.info.config_name, data._split = "glue", "mrpc", datasets.Split.TRAIN
    net = model()
    net.config._name_or_path = "base/model"
    net.add_model_tags(["tagged"])
    learn = Learner(net, train_dataset=data, eval_dataset=rows(8), output_dir=str(tmp_path/"out"), compute_metrics=lambda p: {"accuracy": 0.5},
                    eval_strategy="steps", eval_steps=2, push_to_hub=True, **SETTINGS)
    learn.train()
    learn.push_to_hub(language="en", license="mit", tags="small", tasks="text-classification", dataset="GLUE", dataset_args="mrpc")
    text = hub.files("me/out")["README.md"].decode()
    head = yaml.safe_load(text.split("---")[1])
    assert head["base_model"] == "base/model" and head["datasets"] == ["glue"] and head["library_name"] == "transformers" and head["license"] == "mit"
    assert set(head["tags"]) == {"small", "tagged", "trainer_nb"} and "accuracy" in head["metrics"] and head["pipeline_tag"] == "text-classification"
    found = head["model-index"][0]["results"][0]
    assert found["dataset"] == {"name": "GLUE", "type": "glue", "args": "mrpc"} and {"name": "eval_accuracy", "type": "accuracy", "value": 0.5} in found["metrics"]
    assert "fine-tuned from [base/model]" in text and "| training | glue, mrpc, train, 16 samples |" in text and "| learning_rate | `0.01` |" in text
    assert "| total_train_batch_size | 4 |" in text and "| transformers |" in text and text.count("| 0.5 |") >= 4
    rows_of_results = text.split("## Training results")[1].split("## Versions")[0].strip().splitlines()
    assert rows_of_results[0].startswith("| training loss | epoch | step | eval_loss | eval_accuracy |") and len(rows_of_results) == 2 + 3
    # it is pushed with each save as well
    assert "README.md" in next(c for c in hub.commits if c.message == "Training in progress, step 2").paths


def test_the_users_readme_is_pushed(hub, tmp_path):
    (tmp_path/"out").mkdir()
    (tmp_path/"out"/"README.md").write_text("# Mine\n")
    learn = make(tmp_path/"out")
    learn.train()
    with pytest.warns(UserWarning, match="was kept"): learn.push_to_hub()
    assert hub.files("me/out")["README.md"] == b"# Mine\n" == (tmp_path/"out"/"README.md").read_bytes()


# ---- resuming from the Hub

@pytest.mark.parametrize("strategy, name, save_format", [("checkpoint", "me/out", "safetensors"), SLOW("all_checkpoints", "hf://me/out", "safetensors"),
                                                         SLOW("all_checkpoints", "me/out/checkpoint-2", "trainer"), ("checkpoint", True, "trainer")])
def test_resuming_from_the_hub(hub, tmp_path, strategy, name, save_format):
    "Another machine continues with the same bytes as if there had been no interruption."
    first = patient(make, tmp_path/"out", hub_strategy=strategy, save_format=save_format, max_steps=6)
    first.step(5)
    first._finish_current_push()
    whole = make(tmp_path/"whole", push_to_hub=False, save_format=save_format)
    whole.train()
    first.free()
    second = make(tmp_path/"second", hub_strategy=strategy, hub_model_id="me/out", save_format=save_format)
    second.train(resume_from_checkpoint=name)
    assert all(torch.equal(a, b) for a, b in zip(second.model.state_dict().values(), whole.model.state_dict().values()))
    rows = [r for r in second.history if not r.abandoned]   # the steps after checkpoint-2 are in its log as well
    assert [(r.step, r.loss) for r in rows] == [(r.step, r.loss) for r in whole.history] and len(rows) == 6
    assert [l.get("loss") for l in second.state.log_history] == [l.get("loss") for l in whole.state.log_history]


def test_a_future_that_was_left_behind_is_not_resumed(hub, tmp_path):
    "As in a folder: checkpoint-6 is of steps that were discarded."
    learn = patient(make, tmp_path/"out", hub_strategy="all_checkpoints", max_steps=12)
    learn.step(7)
    learn.rewind(4)
    learn.set(learning_rate=1e-3)
    learn.step(1)
    learn._finish_current_push()
    assert {p.split("/")[0] for p in hub.files("me/out") if p.startswith("checkpoint")} == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
    second = make(tmp_path/"second", push_to_hub=False, max_steps=12)
    second.load_checkpoint("me/out")
    assert second.state.global_step == 4 and all(torch.equal(a, b) for a, b in zip(second.model.state_dict().values(), learn.model.state_dict().values()))


def test_resuming_from_what_the_trainer_has_pushed(hub, tmp_path):
    patient(theirs, tmp_path/"out", hub_strategy="checkpoint").train()
    learn = make(tmp_path/"mine", push_to_hub=False, max_steps=8)
    learn.train(resume_from_checkpoint="me/out")
    assert learn.state.global_step == 8


def test_the_runs_own_name_means_its_own_branch(hub, tmp_path):
    patient(make, tmp_path/"out", hub_strategy="checkpoint", hub_revision="dev").train()
    again = make(tmp_path/"again", hub_strategy="checkpoint", hub_model_id="me/out", hub_revision="dev", max_steps=8)
    again.load_checkpoint("me/out")
    assert again.state.global_step == 6
    with pytest.raises(ValueError, match="There is no checkpoint in me/out"): again.load_checkpoint("me/out@main")


def test_what_cannot_be_resumed_from(hub, tmp_path):
    learn = make(tmp_path/"out")
    with pytest.raises(ValueError, match="No valid checkpoint found in output directory .*out"): learn.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="There is no checkpoint in me/out to resume from; hub_strategy='checkpoint' pushes one"): learn.train(resume_from_checkpoint="me/out")
    with pytest.raises(ValueError, match="me/nothing cannot be resumed from .404.*check the name, .*`hf auth login` stores another token"): learn.train(resume_from_checkpoint="me/nothing")
    learn.train()
    with pytest.raises(ValueError, match="There is no checkpoint-3 in me/out"): learn.load_checkpoint("me/out/checkpoint-3")
    assert learn.state.global_step == 6


# ---- processes

def test_a_forked_process_has_no_uploads(hub, tmp_path):
    hub.gate.clear()
    learn = make(tmp_path/"out", save_steps=6)
    class Later(TrainerCallback):
        def on_train_end(self, *args, **kwargs):
            assert hub.arrived.wait(10)
            child = os.fork()
            if not child:
                done = learn.push_in_progress.is_done()
                learn.push_in_progress.wait()
                os._exit(0 if done and list((tmp_path/"out"/"_push").iterdir()) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            hub.gate.set()
    learn.add_callback(Later())
    learn.train()
    learn.free()
    assert hub.messages() == ["Training in progress, step 6"] and not [t for t in threading.enumerate() if t.name == "trainer_nb-push"]


def test_what_a_killed_process_left_is_removed(hub, tmp_path):
    left = tmp_path/"out"/"_push"/"files.tmp-0123456789ab.01234567"
    left.mkdir(parents=True)
    (left/"model.safetensors").write_bytes(b"old")
    make(tmp_path/"out").train()
    assert not (tmp_path/"out"/"_push").exists() and hub.messages()


def test_two_processes_push_once(hub, tmp_path):
    learn = make(tmp_path/"out", hub_strategy="checkpoint", hub_always_push=True)
    hub.fail = lambda method, path: time.sleep(0.3) if "/commit/" in path else None
    with learn.launch(2):
        learn.train()
        # the end of training waits for the last push
        assert len(hub.commits) == 6
        learn.push_to_hub("From here")
    assert hub.messages() == [f"Training in progress, step {i}{more}" for i in (2, 4, 6) for more in ("", ", checkpoint")] + ["From here"]
    assert hub.files("me/out")["model.safetensors"] == (tmp_path/"out"/"model.safetensors").read_bytes() == (tmp_path/"out"/"checkpoint-6"/"model.safetensors").read_bytes()


RANKS = """
import sys
sys.path[:0] = sys.argv[2:]
from test_hub import *
import torch.distributed as dist
# in one piece: the processes write to one pipe
def say(text): os.write(1, f"RANK {dist.get_rank()} {text}\\n".encode())
if __name__ == "__main__":
    learn = make(sys.argv[1], push_to_hub=False, save_strategy="no")
    learn.step()
    for act in (learn.push_to_hub, lambda: vars(learn.args).update(push_to_hub=True), learn.train, learn.save_model):
        try: say(f"made {act()}")
        except Exception as error: say(f"raised {type(error).__name__} {str(error)[:60]}")
    vars(learn.args).update(push_to_hub=False)
    learn.train()
    say(f"is at {learn.state.global_step}")
    dist.destroy_process_group()
"""


def test_a_failure_is_one_of_all_processes(hub, tmp_path):
    "The repository cannot be created on the main process; the others do not wait for it."
    hub.fail = lambda method, path: 403 if "create" in path else None
    (tmp_path/"script.py").write_text(RANKS)
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(tmp_path/"script.py"), str(tmp_path/"out"), *paths]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110)
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("RANK"))
    assert len([line for line in said if line.startswith("RANK 0 raised PushFailed The repository out is not ready (403")]) == 2, done.stdout + done.stderr
    assert len([line for line in said if line.startswith("RANK 1 raised MainProcessFailed Rank 0 failed: PushFailed: The repository out")]) == 2, done.stdout
    assert {"RANK 0 is at 6", "RANK 1 is at 6"} <= {*said} and len(said) == 10, said


SCRIPT = """
import sys, time
sys.path[:0] = sys.argv[2:]
from test_hub import *
if __name__ == "__main__":
    make(sys.argv[1], push_to_hub=False, save_strategy="no", hub_model_id="me/out").push_to_hub(blocking=False)
"""


def test_the_end_of_a_script_waits(hub, tmp_path):
    "Also for the files that are uploaded in a thread pool, which Python closes before it waits for threads."
    def slow(method, path):
        if "preupload" in path: time.sleep(2)
    hub.fail = slow
    (tmp_path/"script.py").write_text(SCRIPT)
    (tmp_path/"out").mkdir()
    (tmp_path/"out"/"second.bin").write_bytes(b"two")
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    subprocess.run([sys.executable, str(tmp_path/"script.py"), str(tmp_path/"out"), *paths], check=True, timeout=100)
    assert hub.messages() == ["End of training"] and hub.files("me/out")["second.bin"] == b"two" and not (tmp_path/"out"/"_push").exists()
