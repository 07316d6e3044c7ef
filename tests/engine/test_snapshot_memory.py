"The memory of snapshots: references instead of copies."
import torch

from trainer_nb.args.training_args import TrainingArguments
from trainer_nb.engine.run_state import RunState
from trainer_nb.engine.snapshot import capture_snapshot, differences


def make_run(width=512):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 1))
    run = RunState(args=TrainingArguments(), model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1))
    step(run)
    return run


def step(run):
    run.model(torch.randn(4, run.model[0].in_features)).pow(2).mean().backward()
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.state.global_step += 1


def test_a_snapshot_is_a_copy_unless_references_are_wanted():
    run = make_run()
    copy, references = capture_snapshot(run), capture_snapshot(run, by_reference=True)
    assert differences(copy, references) == [] and list(copy.tensors) == list(references.tensors)
    weight, bias = run.model[0].weight, run.model[0].bias
    assert references.tensors["weights/0.weight"].data_ptr() == weight.data_ptr()
    assert not references.tensors["weights/0.weight"].requires_grad and type(references.tensors["weights/0.weight"]) is torch.Tensor
    assert references.tensors["optimizer/0.weight/exp_avg"].data_ptr() == run.optimizer.state[weight]["exp_avg"].data_ptr()
    # a part of a large memory would be pickled with all of it
    assert references.tensors["weights/0.bias"].data_ptr() != bias.data_ptr()
    own = {t.untyped_storage().data_ptr() for t in (*run.model.parameters(), *(v for s in run.optimizer.state.values() for v in s.values()))}
    assert not own & {t.untyped_storage().data_ptr() for t in copy.tensors.values()}

