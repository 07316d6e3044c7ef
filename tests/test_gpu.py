"What only a CUDA device can show: run with `pytest -m gpu`."
import gc, weakref

import pytest, torch

from toys import Bomb, Boom, finish, hard_learner, unequal

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


@pytest.mark.parametrize("precision", [{}, dict(bf16=True), dict(fp16=True, optim="adamw_torch_fused")], ids=["fp32", "bf16", "fp16 fused"])
def test_between_two_logs_nothing_is_asked_of_the_device(precision):
    learn = hard_learner(**GPU | dict(full_determinism=False), **precision, logging_steps=1000, num_train_epochs=20, dataloader_pin_memory=True)
    learn.step(4)
    torch.cuda.set_sync_debug_mode("error")
    try: learn.step(8)
    finally: torch.cuda.set_sync_debug_mode("default")


def test_fp16_trains_and_scales():
    learn = hard_learner(**GPU, fp16=True)
    with pytest.warns(UserWarning, match="not fused"): first = learn.step()[0].loss
    learn.train()
    assert learn.history[-1].loss < first and learn.run_state.device.scaler.get_scale() > 0


def test_out_of_memory_leaves_nothing_behind():
    learn = hard_learner(**GPU)
    learn.step()
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
