"What only a CUDA device can show: run with `make test-gpu`."
import contextlib, gc, os, signal, subprocess, sys, time, weakref

import pytest, torch

from conftest import ROOT
from trainer_nb import Learner
from toys import Bomb, Boom, finish, hard_learner, outcome, unequal

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]
GPU = dict(use_cpu=False, full_determinism=True)


@pytest.fixture(autouse=True)
def as_it_was():
    "full_determinism is for the whole process."
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize("precision", [{}, dict(bf16=True), dict(fp16=True), dict(fp16=True, optim="adamw_torch_fused")],
                         ids=["fp32", "bf16", "fp16", "fp16 fused"])
def test_any_split_gives_the_same_bytes(precision):
    "With dropout, BatchNorm, augmentation and accumulation, and a step that fails on the way."
    want = finish(hard_learner(**GPU, **precision))
    learn = hard_learner(**GPU, **precision, hook=Bomb("backward", 8))
    learn.step(2)
    with pytest.raises(Boom): learn.step(2)
    learn.step(2)
    assert unequal(want, finish(learn)) == []


class Quiet(torch.nn.Module):
    "BatchNorm and dropout, and nothing that asks the device."
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 3))

    def forward(self, x, labels): return {"loss": torch.nn.functional.cross_entropy(self.layers(x), labels)}


class Counted(Quiet):
    "Divides by the labels of the whole window."
    def forward(self, x, labels, num_items_in_batch=None, **kwargs):
        return {"loss": torch.nn.functional.cross_entropy(self.layers(x), labels, reduction="sum") / num_items_in_batch}


# Each with the arguments that it needs: read here, read by data workers, and by an iterable that knows nothing of pinned memory.
FED = {"here": {}, "workers": dict(dataloader_num_workers=2), "an iterable": dict(cls=type("Own", (Learner,), dict(
    get_train_dataloader=lambda self: [{"x": torch.randn(4, 4), "labels": torch.arange(4) % 3} for _ in range(9)])))}


@pytest.mark.parametrize("fed", list(FED))
@pytest.mark.parametrize("model", [Quiet, Counted])
@pytest.mark.parametrize("precision", [{}, dict(bf16=True), dict(fp16=True, optim="adamw_torch_fused")], ids=["fp32", "bf16", "fp16 fused"])
def test_between_two_logs_nothing_is_asked_of_the_device(precision, model, fed):
    "Not with the default settings, nor by what watches the layers: every wait for the device is an error here."
    quiet = dict(rewind_every=0) if "fp16" in precision else {}   # a snapshot asks for the scale
    learn = hard_learner(**GPU | dict(full_determinism=False), **precision, **quiet, **FED[fed], model=model(), logging_steps=1000, num_train_epochs=20)
    learn.watch(every=3)
    learn.step(4)   # the first step looks at what the forward pass changes
    torch.cuda.set_sync_debug_mode("error")
    try: learn.step(8)
    finally: torch.cuda.set_sync_debug_mode("default")


def test_the_checking_itself_works():
    "A model that asks is found out; so is a batch from ordinary memory."
    for asks in (dict(), dict(model=Quiet(), dataloader_pin_memory=False)):
        learn = hard_learner(**GPU | dict(full_determinism=False), **asks, logging_steps=1000)
        learn.step(2)
        torch.cuda.set_sync_debug_mode("error")
        try:
            with pytest.raises(RuntimeError, match="synchroniz"): learn.step()
        finally: torch.cuda.set_sync_debug_mode("default")


def test_fp16_trains_and_scales():
    "To nearly the losses of fp32: dropout and BatchNorm of four samples amplify what half precision rounds."
    learn, plain = hard_learner(**GPU, fp16=True, optim="adamw_torch"), hard_learner(**GPU, optim="adamw_torch")
    learn.train()
    plain.train()
    assert torch.tensor(learn.history.column("loss")).sub(torch.tensor(plain.history.column("loss"))).abs().max() < 0.1
    assert learn.run_state.device.scaler.get_scale() > 0


def test_out_of_memory_leaves_nothing_behind():
    learn = hard_learner(**GPU)
    learn.step(2)   # the first one has shown which large buffers change; from the second on, they are copied before a step
    gc.collect()
    before = torch.cuda.memory_allocated()
    learn.model.hook = lambda name: torch.empty(1 << 50, device="cuda") if name == "end of forward" else None
    with pytest.raises(torch.OutOfMemoryError): learn.step()
    assert torch.cuda.memory_allocated() <= before
    learn.model.hook = lambda name: None
    learn.step()


def test_a_learner_that_is_gone_holds_no_memory():
    gc.collect()
    before = torch.cuda.memory_allocated()
    learn = hard_learner(**GPU)
    learn.step(2)
    model = weakref.ref(learn.model)
    del learn
    gc.collect()
    assert model() is None and torch.cuda.memory_allocated() <= before


class Deep(torch.nn.Module):
    "Layers that FSDP wraps, of rows that do not divide evenly, and dropout."
    _no_split_modules = ["Sequential"]
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Dropout(0.1)), torch.nn.Linear(9, 3)

    def forward(self, x, labels): return {"loss": torch.nn.functional.cross_entropy(self.outer(self.inner(x)), labels)}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU cannot hold two parts")
@pytest.mark.parametrize("precision", [{}, dict(bf16=True)], ids=["fp32", "bf16"])
def test_a_model_in_shards(precision):
    "As DDP within rounding, the same bytes however it is split, whole at home; each process holds a part on its own device."
    def learner(**more):
        torch.manual_seed(0)
        return hard_learner(**GPU, **precision, **more, model=Deep(), gradient_accumulation_steps=2)
    ddp, one, split = learner(), learner(fsdp=True), learner(fsdp=True)
    for learn in (ddp, one): learn.launch(2, train=True)
    with split.launch(2):
        split.step(2)
        parts = split.run_on_all(lambda learn: (str(learn.model.outer.weight.device), tuple(learn.model.outer.weight._local_tensor.shape)))
        assert parts == [("cuda:0", (2, 9)), ("cuda:1", (1, 9))] and split.rewind(1).different == []
    with split.launch(2): split.train()
    assert unequal(outcome(one), outcome(split)) == []
    for a, b in zip(ddp.model.parameters(), one.model.parameters()): torch.testing.assert_close(a, b, rtol=2e-2 if precision else 1e-4, atol=1e-2 if precision else 1e-5)


# ---- several GPUs; a loop by hand beside ours

def several(test): return pytest.mark.timeout(240)(pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two processes need two GPUs")(test))


def launches(act):
    "The kernels and copies that are launched."
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        act()
        torch.cuda.synchronize()
    return sum(event.count for event in profiled.key_averages() if event.key.startswith(("cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cuLaunchKernel")))


def by_hand(model, size, precision):
    "A function that trains with a loop of torch alone."
    matrices, others = ([p for p in model.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], fused=True)
    def steps(n):
        for batch in [{"x": torch.randn(size, 4).pin_memory(), "labels": (torch.arange(size) % 3).pin_memory()} for _ in range(n)]:
            with precision: loss = model(**{k: v.cuda(non_blocking=True) for k, v in batch.items()})["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return steps


def test_launches_of_a_step_are_those_of_a_loop_by_hand():
    "Beside them: copies of a few weights and of the buffers that change, with which a step is taken back; one launch for each."
    learn = hard_learner(**GPU | dict(full_determinism=False), model=Quiet(), logging_steps=1000, num_train_epochs=40, rewind_every=0, gradient_accumulation_steps=1, optim="adamw_torch_fused")
    learn.step(4)
    ours = launches(lambda: learn.step(10)) / 10
    steps = by_hand(Quiet().cuda(), 4, contextlib.nullcontext())
    steps(4)
    assert ours <= launches(lambda: steps(10)) / 10 + 4


class Wide(torch.nn.Linear):
    "Outputs that take more memory than anything else."
    def forward(self, x, labels):
        out = super().forward(x)
        return {"loss": torch.nn.functional.cross_entropy(out, labels), "logits": out}


@pytest.mark.parametrize("compiled", [False, True])
def test_memory_of_a_step_is_that_of_a_loop_by_hand(compiled):
    "In bf16, with outputs that nobody reads."
    data = [{"x": torch.randn(4), "labels": torch.tensor(i % 3)} for i in range(512)]
    learn = Learner(Wide(4, 30_000), train_dataset=data, bf16=True, per_device_train_batch_size=512, optim="adamw_torch_fused", max_steps=9, rewind_every=0,
                    save_strategy="no", report_to="none", disable_tqdm=True, torch_compile=compiled)
    model, peaks = Wide(4, 30_000).cuda(), []
    for steps in (learn.step, by_hand(torch.compile(model) if compiled else model, 512, torch.autocast("cuda", torch.bfloat16))):
        steps(3)
        gc.collect(); torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        steps(3)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[0] <= 1.02 * peaks[1]


class Alone(Learner):
    "Returns a number, as an override may."
    def training_step(self, model, inputs, num_items_in_batch=None): return super().training_step(model, inputs, num_items_in_batch).item()


class Branches(torch.nn.Module):
    "Each rank has a layer of its own."
    def __init__(self):
        super().__init__()
        self.layers, self.out = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)), torch.nn.Linear(4, 3)
    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.out(self.layers[int(os.environ.get("RANK", 0))](x)), labels)}


@several
def test_ranks_with_different_parameters_train_with_nccl():
    "Where no parameter may be unused, an error comes within seconds."
    learn = hard_learner(**GPU, model=Branches())
    with learn.launch(2):
        learn.step(6)
        one, two = learn.run_on_all(lambda learn: [p.tolist() for p in learn.model.parameters()])
        assert one == two
    learn = hard_learner(**GPU, model=Branches(), ddp_find_unused_parameters=False)
    with learn.launch(2):
        start = time.monotonic()
        with pytest.raises(ValueError, match="on rank [01]"): learn.step()
        assert time.monotonic() - start < 60


@several
def test_a_loss_that_is_a_number_is_sent_with_nccl_and_tensors_arrive_on_the_rank_s_own_device():
    table, learn = torch.arange(3, device="cuda:0"), hard_learner(**GPU, cls=Alone)
    learn.step()
    with learn.launch(2):
        learn.step(2)
        assert learn.run_on_all(lambda learn: str(table.device)) == ["cuda:0", "cuda:1"] and len(learn.history) == 3


@several
def test_nothing_is_asked_of_the_device_by_several_processes():
    "Between two logs, with the loss and the flags beside the gradients."
    learn = hard_learner(**GPU | dict(full_determinism=False), model=Quiet(), logging_steps=1000, num_train_epochs=20, rewind_every=0)
    with learn.launch(2):
        learn.step(4)
        learn.run_on_all(lambda learn: torch.cuda.set_sync_debug_mode("error"))
        learn.run(steps=8)
        learn.run_on_all(lambda learn: torch.cuda.set_sync_debug_mode("default"))


@several
def test_a_process_that_dies_blocks_no_other_for_long():
    "The survivor waits on its device for a message that never comes; the run continues from what was finished."
    learn = hard_learner(**GPU, rewind_every=2, num_train_epochs=20)
    with learn.launch(2):
        learn.step(6)
        os.kill(learn.processes[1]["pid"], signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="killed by SIGKILL"): learn.step(4)
        assert time.monotonic() - start < 90 and learn.state.global_step >= 4
        learn.step(2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU cannot hold two parts")
@pytest.mark.parametrize("settings", [dict(fp16=True), dict(fsdp_config={"cpu_offload": True}), dict(fsdp_config={"activation_checkpointing": True, "activation_checkpointing_offload": True}), dict(torch_compile=True),
                                      dict(fsdp_config={"state_dict_type": "SHARDED_STATE_DICT"})], ids=["fp16", "offload", "recompute", "compile", "shards"])
def test_the_modes_of_a_model_in_shards(settings, tmp_path):
    "The same bytes however the run is split, also over a checkpoint."
    def learner(name, **more):
        torch.manual_seed(0)
        return hard_learner(**GPU, **settings, **more, model=Deep(), gradient_accumulation_steps=2, fsdp=True, output_dir=str(tmp_path / name), save_strategy="no")
    one, split, again = learner("one"), learner("split"), learner("again")
    one.launch(2, train=True)
    with split.launch(2):
        split.step(2)
        split.save_checkpoint(tmp_path / "two")
        assert split.rewind(1).different == []
        split.train()
    with again.launch(2): again.load_checkpoint(tmp_path / "two"); again.train()
    assert unequal(outcome(one), outcome(split)) == [] and unequal(outcome(one), outcome(again)) == []


FRESH = '''
import torch
from trainer_nb import Learner
from trainer_nb.launch import local_workers
choose = local_workers.choose_start_method
def shown(*args):
    print("METHOD", method := choose(*args), flush=True)
    return method
local_workers.choose_start_method = shown
data = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.randint(2, (48,)))
learn = Learner(torch.nn.Linear(4, 2), train_dataset=data, loss_func=torch.nn.functional.cross_entropy, per_device_train_batch_size=4,
                report_to="none", disable_tqdm=True, max_steps=6)
print(learn.args.device)
with learn.launch(torch.cuda.device_count()): learn.step(3)
print("STEPS", len(learn.history))
'''


@pytest.mark.timeout(180)
def test_a_fresh_kernel_forks_its_processes():
    "Nothing before the launch initializes CUDA."
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FRESH], capture_output=True, text=True, timeout=170, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "METHOD fork" in done.stdout and "STEPS 3" in done.stdout, done.stdout
