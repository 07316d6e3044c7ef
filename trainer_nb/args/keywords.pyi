# written by scripts/make_reference.py
from typing import TypedDict

from trainer_nb.args.fields import HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType

class TrainingArgumentsKwargs(TypedDict, total=False):
    "List the fields of `TrainingArguments` as keywords."
    output_dir: str | None
    per_device_train_batch_size: int
    per_device_eval_batch_size: int
    num_train_epochs: float
    max_steps: int
    gradient_accumulation_steps: int
    average_tokens_across_devices: bool
    auto_find_batch_size: bool
    learning_rate: float | list[float]
    layer_groups: list[str] | None | list[str | list[str]]
    lr_scheduler_type: SchedulerType | str
    lr_scheduler_kwargs: dict | str | None
    warmup_steps: float
    optim: OptimizerNames | str
    optim_args: dict | str | None
    optim_target_modules: None | str | list[str] | bool
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    max_grad_norm: float
    average: str | None
    average_args: dict | str | None
    label_smoothing_factor: float
    neftune_noise_alpha: float | None
    bf16: bool
    fp16: bool
    bf16_full_eval: bool
    fp16_full_eval: bool
    tf32: bool | None
    full_determinism: bool
    seed: int
    data_seed: int | None
    use_cpu: bool
    rollback: str
    rewind_every: int | None
    rewind_memory: float | None
    on_nan: str | None
    on_spike: str | None
    activation_checkpointing: bool | None
    activation_checkpointing_kwargs: dict | str | None
    gradient_checkpointing: bool | None
    gradient_checkpointing_kwargs: dict | str | None
    torch_compile: bool
    torch_compile_backend: str | None
    torch_compile_mode: str | None
    use_liger_kernel: bool
    liger_kernel_config: dict[str, bool] | None
    use_cache: bool
    torch_empty_cache_steps: int | None
    skip_memory_metrics: bool
    debug: None | str | list[str]
    ddp_backend: str | None
    ddp_find_unused_parameters: bool | None
    ddp_bucket_cap_mb: int | None
    ddp_broadcast_buffers: bool | None
    ddp_static_graph: bool | None
    ddp_timeout: int
    fsdp: str | None | bool | list[str]
    fsdp_config: dict | str | None
    deepspeed: dict | str | None
    accelerator_config: dict | str | None
    parallelism_config: dict | None | object
    logging_strategy: IntervalStrategy | str
    logging_steps: float
    logging_first_step: bool
    logging_nan_inf_filter: bool
    logging_dir: str | None
    include_num_input_tokens_seen: str | bool
    disable_tqdm: bool | None
    log_level: str
    log_level_replica: str
    log_on_each_node: bool
    report_to: None | str | list[str]
    run_name: str | None
    project: str
    trackio_space_id: str | None
    trackio_bucket_id: str | None
    trackio_static_space_id: str | None | bool
    eval_strategy: IntervalStrategy | str
    eval_steps: float | None
    eval_delay: float
    eval_on_start: bool
    check_on_start: bool
    prediction_loss_only: bool
    eval_accumulation_steps: int | None
    eval_do_concat_batches: bool
    eval_use_gather_object: bool
    batch_eval_metrics: bool
    include_for_metrics: list[str]
    metric_for_best_model: str | None
    greater_is_better: bool | None
    predict_with_generate: bool
    generation_max_length: int | None
    generation_num_beams: int | None
    generation_config: str | None | object
    sortish_sampler: bool
    save_strategy: SaveStrategy | str
    save_steps: float
    save_total_limit: int | None
    save_only_model: bool
    save_format: str
    load_best_model_at_end: bool
    save_on_each_node: bool
    enable_jit_checkpoint: bool
    ignore_data_skip: bool
    restore_callback_states_from_checkpoint: bool
    push_to_hub: bool
    hub_model_id: str | None
    hub_strategy: HubStrategy | str
    hub_token: str | None
    hub_private_repo: bool | None
    hub_always_push: bool
    hub_revision: str | None
    dataloader_drop_last: bool
    dataloader_num_workers: int
    dataloader_pin_memory: bool
    dataloader_persistent_workers: bool
    dataloader_prefetch_factor: int | None
    dataloader_multiprocessing_context: str | None
    dataloader_in_order: bool
    remove_unused_columns: bool
    label_names: list[str] | None
    train_sampling_strategy: str
    length_column_name: str
    do_train: bool
    do_eval: bool
    do_predict: bool
    resume_from_checkpoint: str | None | bool
    local_rank: int
