"What several tests share: made."
from toys import hard_learner


LONG = dict(num_train_epochs=10, logging_steps=4, save_strategy="no")

def made(folder, **given): return hard_learner(**LONG | dict(output_dir=str(folder)) | given)
