"What several tests share: make."
import time
import torch
from trainer_nb import Learner


class Net(torch.nn.Module):
    def __init__(self, pause=0.0): super().__init__(); self.body, self.drop, self.pause = torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), pause
    def forward(self, x, labels):
        time.sleep(self.pause)
        logits = self.drop(self.body(x))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

def make(pause=0.0, **settings):
    torch.manual_seed(0)
    data = [{"x": torch.randn(4), "labels": i % 3} for i in range(40)]
    return Learner(Net(pause), train_dataset=data, eval_dataset=data, **dict(per_device_train_batch_size=4, max_steps=25, eval_strategy="steps", eval_steps=5, use_cpu=True) | settings)
