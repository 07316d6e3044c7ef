"What several tests share: NEEDS, OTHER."


# A value of every field that is allowed and is not the default, with what it needs beside it.
OTHER = dict(
    output_dir="out", per_device_train_batch_size=4, per_device_eval_batch_size=4, num_train_epochs=1.5, max_steps=10,
    gradient_accumulation_steps=2, average_tokens_across_devices=False, ddp_backend="gloo", ddp_find_unused_parameters=True, ddp_bucket_cap_mb=5,
    ddp_broadcast_buffers=False, ddp_static_graph=True, ddp_timeout=60, learning_rate=[1e-4, 1e-3], layer_groups=["a", ["b", "c"]],
    lr_scheduler_type="cosine", lr_scheduler_kwargs={"num_cycles": 1.0}, warmup_steps=0.1, optim="sgd",
    optim_args="momentum=0.9", weight_decay=0.1, adam_beta1=0.8, adam_beta2=0.99, adam_epsilon=1e-6, max_grad_norm=0.0,
    optim_target_modules=["a"],
    label_smoothing_factor=0.1, bf16=True, fp16=True, full_determinism=True, seed=1, data_seed=2, use_cpu=True,
    rollback="full", average="ema", average_args={"decay": 0.5}, rewind_every=5, rewind_memory=0.5, on_nan="skip", on_spike="stop", check_on_start=True, logging_strategy="epoch", logging_steps=0.1, logging_first_step=True, disable_tqdm=True,
    run_name="a run", report_to=["none"], eval_strategy="steps", eval_steps=5, eval_delay=1, eval_on_start=True,
    prediction_loss_only=True, eval_accumulation_steps=3, save_strategy="epoch", save_steps=7, save_total_limit=2, save_only_model=True, save_format="trainer", save_on_each_node=True, enable_jit_checkpoint=True,
    metric_for_best_model="accuracy", greater_is_better=False, load_best_model_at_end=True, dataloader_drop_last=True,
    dataloader_num_workers=2, dataloader_pin_memory=False, dataloader_persistent_workers=True, dataloader_prefetch_factor=4,
    remove_unused_columns=False, label_names=["y"], train_sampling_strategy="sequential",
    accelerator_config={"even_batches": False}, include_num_input_tokens_seen="all", ignore_data_skip=True, dataloader_multiprocessing_context="spawn",
    length_column_name="n", bf16_full_eval=True, fp16_full_eval=True, eval_do_concat_batches=False, eval_use_gather_object=True,
    batch_eval_metrics=True, include_for_metrics=["loss"], predict_with_generate=True, generation_max_length=5, generation_num_beams=2,
    generation_config="gen.json",
    do_train=True, do_eval=True, do_predict=True, resume_from_checkpoint="here", local_rank=1)

NEEDS = dict(average_args=dict(average="ema"), fsdp_config=dict(fsdp=True), learning_rate=dict(layer_groups=["a"]), optim_target_modules=dict(optim="muon"), report_to=dict(output_dir="out"), dataloader_persistent_workers=dict(dataloader_num_workers=1),
             dataloader_prefetch_factor=dict(dataloader_num_workers=1), dataloader_multiprocessing_context=dict(dataloader_num_workers=1),
             length_column_name=dict(train_sampling_strategy="group_by_length"), load_best_model_at_end=dict(output_dir="out", eval_strategy="epoch"),
             activation_checkpointing_kwargs=dict(activation_checkpointing=True), liger_kernel_config=dict(use_liger_kernel=True),
             hub_strategy=dict(push_to_hub=True, output_dir="out"), hub_always_push=dict(push_to_hub=True, output_dir="out"),
             **{name: dict(output_dir="out") for name in ("push_to_hub", "save_strategy", "save_steps", "save_total_limit", "save_only_model", "save_format",
                                                          "save_on_each_node", "enable_jit_checkpoint")})
