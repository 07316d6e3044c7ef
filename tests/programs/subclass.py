# A subclass with its own optimizer, schedule, loss and step, as articles on customising the Trainer show it; only the first import line is changed.
from transformers import Trainer, TrainingArguments
import sys
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

out = sys.argv[1]
torch.manual_seed(0)
ids = torch.randint(1, 30, (24, 6), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": row, "labels": (row.sum() % 2)} for row in ids]
model = BertForSequenceClassification(BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                                                 max_position_embeddings=8, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


class WeightedTrainer(Trainer):
    def __init__(self, *args, class_weights=None, head_lr=0.1, **kwargs):
        super().__init__(*args, **kwargs)
        self.class_weights, self.head_lr, self.norms = class_weights, head_lr, []

    def create_optimizer(self):
        if self.optimizer is None:
            head = [p for n, p in self.model.named_parameters() if n.startswith("classifier")]
            body = [p for n, p in self.model.named_parameters() if not n.startswith("classifier")]
            self.optimizer = torch.optim.SGD([{"params": body, "lr": self.args.learning_rate}, {"params": head, "lr": self.head_lr}], momentum=0.9)
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        if self.lr_scheduler is None:
            self.lr_scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer or self.optimizer, max_lr=[0.05, 0.2], total_steps=num_training_steps)
        return self.lr_scheduler

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.CrossEntropyLoss(weight=self.class_weights.to(self.args.device))(outputs.logits.view(-1, self.model.config.num_labels), labels.view(-1))
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        if self.args.n_gpu > 1: loss = loss.mean()
        loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        self.norms.append(sum(p.grad.norm().item() for p in model.parameters() if p.grad is not None))
        return loss.detach()

    def log(self, logs, start_time=None):
        logs["mean_norm"] = sum(self.norms) / max(len(self.norms), 1)
        super().log(logs, start_time)


args = TrainingArguments(output_dir=out, max_steps=7, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=0.02, logging_steps=1,
                         eval_strategy="steps", eval_steps=3, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False)
trainer = WeightedTrainer(model=model, args=args, train_dataset=data, eval_dataset=data[:8], class_weights=torch.tensor([1.0, 3.0]))
result = trainer.train()
found = dict(steps=result.global_step, loss=result.training_loss, weights=torch.cat([p.detach().flatten() for p in trainer.model.parameters()]),
             logged=[{k: v for k, v in row.items() if not k.endswith(("runtime", "per_second", "flos"))} for row in trainer.state.log_history])
