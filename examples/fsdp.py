"""A model divided among processes with FSDP: each holds a part of every weight, of its gradient and of the optimizer's state.

    python fsdp.py --quick                            # two processes, also without a GPU
    torchrun --nproc_per_node 2 fsdp.py --quick"""
import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trainer_nb import Learner, set_seed


def rows(count: int) -> list[dict]:
    ids = torch.randint(128, (count, 1), generator=torch.Generator().manual_seed(0)) + torch.arange(32)
    return [{"input_ids": row % 128, "labels": row % 128} for row in ids]


def held(learn) -> tuple[int, int]:
    "Return the number of weights that this process holds, and that the model has."
    local = [p.to_local() if hasattr(p, "to_local") else p for p in learn.model.parameters()]
    return sum(p.numel() for p in local), sum(p.numel() for p in learn.model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for a moment, to see that everything works")
    steps = 10 if parser.parse_args().quick else 200

    set_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                         num_key_value_heads=4, max_position_embeddings=64))
    # the layers to divide are found by the model's class; others are named by fsdp_config={"transformer_layer_cls_to_wrap": [...]}
    learn = Learner(model, train_dataset=rows(512), per_device_train_batch_size=8, learning_rate=3e-3, max_steps=steps, logging_steps=5,
                    fsdp=True, output_dir="fsdp", save_steps=steps, use_cpu=not torch.cuda.is_available())
    with learn.launch(None if torch.cuda.is_available() else 2):
        learn.step(5)
        part, whole = learn.run_on_all(held)[0]
        if learn.is_world_process_zero(): print(f"each process holds {part / whole:.0%} of {whole:,} weights")
        learn.train()
    # the run is here again, and the model whole; fsdp/checkpoint-N can be resumed with another number of processes
    if learn.is_world_process_zero(): print(f"loss {learn.history[0].loss:.2f} -> {learn.history[-1].loss:.2f}")


if __name__ == "__main__": main()
