"""Rows of test_exact_state.py that fail today, by id: a row that is exact is removed from here, and a strict xfail demands it."""

FAILS_TODAY = set("""
    sampler-minus_zero-branch
    sampler-complex-reset
    collator-bytes-rewind loss-bytes-lr_find loss-bytes-abort
    collator-list-lr_find
    collator-dict-rewind
    collator-set-restore collator-set-reset
    collator-nested_tuples-restore collator-nested_tuples-reset
    sampler-enum-restore sampler-enum-reset data-enum-lr_find
    loss-flag-reset collator-flag-resume
    collator-fraction-rewind module-fraction-restore module-fraction-reset learner-fraction-resume
        loss-fraction-lr_find loss-fraction-abort
    sampler-decimal-rewind loss_module-decimal-restore loss_module-decimal-reset data-decimal-resume
        callback-decimal-abort
    learner-date-failed_first_step learner-date-failed_step learner-date-rewind loss-date-restore loss-date-reset
        collator-date-resume module-date-lr_find module-date-abort
    data-path-rewind sampler-path-branch
    callback-range-failed_first_step callback-range-failed_step callback-range-rewind sampler-range-restore
        sampler-range-reset loss_module-range-resume data-range-lr_find
    collator-numpy_scalar-rewind loss-numpy_scalar-lr_find loss-numpy_scalar-abort
    data-numpy_float-rewind sampler-numpy_float-branch
    loss-bytearray-failed_first_step loss-bytearray-failed_step loss-bytearray-rewind collator-bytearray-restore
        collator-bytearray-reset module-bytearray-resume learner-bytearray-lr_find learner-bytearray-abort
    collator-array_module-rewind module-array_module-restore module-array_module-reset learner-array_module-resume
        loss-array_module-lr_find loss-array_module-abort
    sampler-namedtuple-rewind loss_module-namedtuple-restore loss_module-namedtuple-reset data-namedtuple-resume
        callback-namedtuple-abort
    learner-namedtuple_later-failed_step learner-namedtuple_later-rewind loss-namedtuple_later-restore
        loss-namedtuple_later-reset collator-namedtuple_later-resume module-namedtuple_later-lr_find
        module-namedtuple_later-abort
    learner-namedtuple_in_place-failed_first_step learner-namedtuple_in_place-failed_step
        learner-namedtuple_in_place-rewind loss-namedtuple_in_place-restore loss-namedtuple_in_place-reset
        collator-namedtuple_in_place-resume module-namedtuple_in_place-lr_find module-namedtuple_in_place-abort
    callback-slots_dataclass-failed_first_step callback-slots_dataclass-failed_step callback-slots_dataclass-rewind
        sampler-slots_dataclass-restore sampler-slots_dataclass-reset loss_module-slots_dataclass-resume
        data-slots_dataclass-lr_find
    collator-slots_replaced-rewind module-slots_replaced-restore module-slots_replaced-reset
        learner-slots_replaced-resume loss-slots_replaced-lr_find loss-slots_replaced-abort
    module-slots-failed_first_step module-slots-failed_step module-slots-rewind learner-slots-restore
        learner-slots-reset loss-slots-resume collator-slots-lr_find
    data-frozen-restore data-frozen-reset callback-frozen-resume sampler-frozen-lr_find
    collator-frozen_as_key-rewind module-frozen_as_key-restore module-frozen_as_key-reset learner-frozen_as_key-resume
        loss-frozen_as_key-lr_find loss-frozen_as_key-abort
    loss-keys-failed_first_step loss-keys-failed_step loss-keys-rewind collator-keys-restore collator-keys-reset
        module-keys-resume learner-keys-lr_find learner-keys-abort
    loss_module-list_subclass-failed_first_step loss_module-list_subclass-failed_step loss_module-list_subclass-rewind
        data-list_subclass-restore data-list_subclass-reset callback-list_subclass-resume
        sampler-list_subclass-lr_find
    sampler-dict_subclass-rewind loss_module-dict_subclass-restore loss_module-dict_subclass-reset
        data-dict_subclass-resume callback-dict_subclass-abort
    module-set_subclass-failed_first_step module-set_subclass-failed_step module-set_subclass-rewind
        learner-set_subclass-restore learner-set_subclass-reset loss-set_subclass-resume collator-set_subclass-lr_find
    callback-int_subclass-failed_first_step callback-int_subclass-failed_step callback-int_subclass-rewind
        sampler-int_subclass-restore sampler-int_subclass-reset loss_module-int_subclass-resume
        data-int_subclass-lr_find
    loss-str_subclass-failed_first_step loss-str_subclass-failed_step loss-str_subclass-rewind
        collator-str_subclass-restore collator-str_subclass-reset module-str_subclass-resume
        learner-str_subclass-lr_find learner-str_subclass-abort
    loss_module-float_subclass-failed_first_step loss_module-float_subclass-failed_step
        loss_module-float_subclass-rewind data-float_subclass-restore data-float_subclass-reset
        callback-float_subclass-resume sampler-float_subclass-lr_find
    learner-tuple_subclass-failed_first_step learner-tuple_subclass-failed_step learner-tuple_subclass-rewind
        loss-tuple_subclass-restore loss-tuple_subclass-reset collator-tuple_subclass-resume
        module-tuple_subclass-lr_find module-tuple_subclass-abort
    loss-deque-restore loss-deque-reset collator-deque-resume
    loss-counter-resume collator-counter-lr_find
    sampler-defaultdict-restore sampler-defaultdict-reset data-defaultdict-lr_find
    sampler-ordered_lru-reset
    loss-dict_order-failed_step collator-dict_order-reset learner-dict_order-abort
    sampler-chain_map-rewind loss_module-chain_map-restore loss_module-chain_map-reset data-chain_map-resume
        callback-chain_map-abort
    data-user_dict-rewind callback-user_dict-restore callback-user_dict-reset sampler-user_dict-branch
        loss_module-user_dict-lr_find loss_module-user_dict-abort
    data-frozenset-restore data-frozenset-reset sampler-frozenset-lr_find
    module-shared_lists-failed_first_step module-shared_lists-failed_step learner-shared_lists-reset
        loss-shared_lists-resume collator-shared_lists-lr_find
    collator-self_reference-rewind module-self_reference-restore module-self_reference-reset
        learner-self_reference-resume loss-self_reference-lr_find loss-self_reference-abort
    collator-ring-rewind module-ring-restore module-ring-reset learner-ring-resume loss-ring-lr_find loss-ring-abort
    loss-object-failed_first_step loss-object-failed_step loss-object-rewind collator-object-restore
        collator-object-reset module-object-resume learner-object-lr_find learner-object-abort
    collator-namespace-rewind loss-namespace-lr_find loss-namespace-abort
    module-saves_itself-failed_first_step module-saves_itself-failed_step module-saves_itself-rewind
        learner-saves_itself-restore learner-saves_itself-reset loss-saves_itself-resume collator-saves_itself-lr_find
    sampler-reduces-rewind loss_module-reduces-restore loss_module-reduces-reset data-reduces-resume
        callback-reduces-abort
    learner-delegates-failed_first_step learner-delegates-failed_step learner-delegates-rewind loss-delegates-restore
        loss-delegates-reset collator-delegates-resume collator-delegates-branch module-delegates-lr_find
        module-delegates-abort
    loss-always_equal-failed_first_step loss-always_equal-failed_step loss-always_equal-rewind
        collator-always_equal-restore collator-always_equal-reset module-always_equal-resume
        learner-always_equal-lr_find learner-always_equal-abort
    callback-compares_as_an_array-failed_first_step callback-compares_as_an_array-failed_step
        callback-compares_as_an_array-rewind sampler-compares_as_an_array-restore sampler-compares_as_an_array-reset
        loss_module-compares_as_an_array-resume data-compares_as_an_array-lr_find
    module-sealed-failed_first_step module-sealed-failed_step module-sealed-rewind learner-sealed-restore
        learner-sealed-reset loss-sealed-resume collator-sealed-lr_find
    loss-cached_property-failed_first_step loss-cached_property-failed_step loss-cached_property-rewind
        collator-cached_property-restore collator-cached_property-reset module-cached_property-resume
        learner-cached_property-lr_find learner-cached_property-abort
    callback-random_subclass-failed_first_step callback-random_subclass-failed_step callback-random_subclass-rewind
        sampler-random_subclass-restore sampler-random_subclass-reset loss_module-random_subclass-resume
        loss_module-random_subclass-branch data-random_subclass-lr_find
    loss_module-numpy_spawned-failed_first_step loss_module-numpy_spawned-failed_step loss_module-numpy_spawned-rewind
        data-numpy_spawned-restore data-numpy_spawned-reset callback-numpy_spawned-resume
        sampler-numpy_spawned-lr_find
    loss_module-seed_sequence-failed_first_step loss_module-seed_sequence-failed_step loss_module-seed_sequence-rewind
        data-seed_sequence-restore data-seed_sequence-reset callback-seed_sequence-resume
        sampler-seed_sequence-lr_find
    learner-sobol-failed_first_step learner-sobol-failed_step learner-sobol-rewind loss-sobol-restore loss-sobol-reset
        collator-sobol-resume module-sobol-lr_find module-sobol-abort
    loss-partial-failed_first_step loss-partial-failed_step loss-partial-rewind collator-partial-restore
        collator-partial-reset module-partial-resume learner-partial-lr_find learner-partial-abort
    module-bound_method-failed_first_step module-bound_method-failed_step module-bound_method-rewind
        learner-bound_method-restore learner-bound_method-reset loss-bound_method-resume collator-bound_method-lr_find
    loss-config-failed_first_step loss-config-failed_step loss-config-rewind collator-config-restore
        collator-config-reset
    data-tensor_in_place-lr_find
    collator-tensor_replaced-lr_find
    data-tensor_of_no_dimension-lr_find
    collator-tensor_bool-resume
    collator-tensor_int64-lr_find
    collator-tensor_strided-rewind module-tensor_strided-restore module-tensor_strided-reset
        callback-tensor_strided-resume callback-tensor_strided-branch sampler-tensor_strided-lr_find
        sampler-tensor_strided-abort
    loss_module-tensor_expanded-rewind data-tensor_expanded-restore data-tensor_expanded-reset
        buffer-tensor_expanded-resume learner-tensor_expanded-lr_find
    data-tensor_conjugate-rewind learner-tensor_conjugate-resume learner-tensor_conjugate-branch
        loss-tensor_conjugate-lr_find loss-tensor_conjugate-abort
    learner-tensor_negative-failed_first_step learner-tensor_negative-failed_step learner-tensor_negative-rewind
        loss-tensor_negative-restore loss-tensor_negative-reset collator-tensor_negative-resume
        module-tensor_negative-lr_find module-tensor_negative-abort
    collator-tensor_transposed-rewind module-tensor_transposed-restore callback-tensor_transposed-branch
        sampler-tensor_transposed-lr_find sampler-tensor_transposed-abort
    collator-tensor_longer-restore collator-tensor_longer-reset
    loss-tensor_resized-failed_first_step loss-tensor_resized-failed_step loss-tensor_resized-rewind
        collator-tensor_resized-restore collator-tensor_resized-reset module-tensor_resized-resume
        module-tensor_resized-branch callback-tensor_resized-lr_find callback-tensor_resized-abort
    collator-tensor_dtype-rewind
    data-tensor_sparse-rewind buffer-tensor_sparse-restore buffer-tensor_sparse-reset loss-tensor_sparse-lr_find
        loss-tensor_sparse-abort
    learner-tensor_sparse_csr-failed_first_step learner-tensor_sparse_csr-failed_step loss-tensor_sparse_csr-restore
        loss-tensor_sparse_csr-reset collator-tensor_sparse_csr-resume module-tensor_sparse_csr-lr_find
        module-tensor_sparse_csr-abort
    module-tensor_subclass-failed_first_step module-tensor_subclass-failed_step module-tensor_subclass-rewind
        callback-tensor_subclass-restore callback-tensor_subclass-reset sampler-tensor_subclass-branch
        loss_module-tensor_subclass-lr_find loss_module-tensor_subclass-abort
    collator-requires_grad-reset
    loss_module-gradient-failed_step data-gradient-restore data-gradient-reset sampler-gradient-lr_find
    data-parameters_in_a_list-rewind sampler-parameters_in_a_list-branch
    loss-view_and_base-resume collator-view_and_base-lr_find
    data-one_tensor_twice-restore data-one_tensor_twice-reset callback-one_tensor_twice-resume
    collator-numpy_and_torch-rewind learner-numpy_and_torch-branch loss-numpy_and_torch-lr_find
        loss-numpy_and_torch-abort
    loss-tensors_in_a_deque-failed_first_step loss-tensors_in_a_deque-failed_step loss-tensors_in_a_deque-rewind
        collator-tensors_in_a_deque-restore collator-tensors_in_a_deque-reset
    sampler-tensor_attribute-rewind loss_module-tensor_attribute-restore loss_module-tensor_attribute-reset
        data-tensor_attribute-resume data-tensor_attribute-branch callback-tensor_attribute-abort
    data-packed_sequence-rewind callback-packed_sequence-restore callback-packed_sequence-reset
        sampler-packed_sequence-branch loss_module-packed_sequence-lr_find loss_module-packed_sequence-abort
    callback-distribution-failed_first_step callback-distribution-failed_step sampler-distribution-restore
        sampler-distribution-reset loss_module-distribution-resume data-distribution-lr_find
    data-array-rewind
    data-array_replaced-rewind
    callback-array_structured-failed_first_step callback-array_structured-failed_step callback-array_structured-rewind
        sampler-array_structured-restore sampler-array_structured-reset loss_module-array_structured-resume
        data-array_structured-lr_find
    data-array_record-rewind callback-array_record-restore callback-array_record-reset sampler-array_record-branch
        loss_module-array_record-lr_find loss_module-array_record-abort
    data-array_text-rewind callback-array_text-restore callback-array_text-reset sampler-array_text-branch
        loss_module-array_text-lr_find loss_module-array_text-abort
    collator-array_bytes-rewind module-array_bytes-restore module-array_bytes-reset learner-array_bytes-resume
        loss-array_bytes-lr_find loss-array_bytes-abort
    data-array_objects-rewind callback-array_objects-restore callback-array_objects-reset sampler-array_objects-branch
        loss_module-array_objects-lr_find loss_module-array_objects-abort
    collator-array_dates-rewind module-array_dates-restore module-array_dates-reset learner-array_dates-resume
        loss-array_dates-lr_find loss-array_dates-abort
    loss-array_empty-failed_first_step loss-array_empty-failed_step collator-array_empty-restore
        module-array_empty-resume module-array_empty-branch learner-array_empty-lr_find learner-array_empty-abort
    loss-array_of_no_dimension-failed_first_step loss-array_of_no_dimension-failed_step
        loss-array_of_no_dimension-rewind collator-array_of_no_dimension-restore collator-array_of_no_dimension-reset
    data-array_fortran-lr_find
    loss-array_reversed-restore loss-array_reversed-reset collator-array_reversed-resume
    loss-array_view_and_base-resume loss-array_view_and_base-branch collator-array_view_and_base-lr_find
    loss-array_read_only-resume collator-array_read_only-lr_find
    loss-array_masked-failed_first_step loss-array_masked-failed_step loss-array_masked-rewind
        collator-array_masked-restore collator-array_masked-reset module-array_masked-resume
    loss_module-frame-failed_first_step loss_module-frame-failed_step loss_module-frame-rewind data-frame-restore
        data-frame-reset sampler-frame-lr_find
    data-frame_grows-rewind sampler-frame_grows-branch loss_module-frame_grows-lr_find loss_module-frame_grows-abort
    loss_module-series-failed_first_step sampler-series-lr_find
    loss_module-bytes_io-failed_first_step loss_module-bytes_io-failed_step loss_module-bytes_io-rewind
        data-bytes_io-restore data-bytes_io-reset callback-bytes_io-resume sampler-bytes_io-lr_find
    learner-count-failed_first_step learner-count-failed_step loss-count-restore loss-count-reset
        collator-count-resume collator-count-branch module-count-lr_find module-count-abort
    sampler-cycle-rewind loss_module-cycle-restore callback-cycle-abort
    loss_module-list_iterator-failed_first_step loss_module-list_iterator-failed_step loss_module-list_iterator-rewind
        data-list_iterator-restore data-list_iterator-reset sampler-list_iterator-lr_find
    loss-enumerate-failed_first_step loss-enumerate-failed_step loss-enumerate-rewind collator-enumerate-restore
        collator-enumerate-reset module-enumerate-resume learner-enumerate-abort
    sampler-map-rewind loss_module-map-restore loss_module-map-reset data-map-resume data-map-branch
        callback-map-abort
    sampler-dict_iterator-rewind loss_module-dict_iterator-restore loss_module-dict_iterator-reset
        data-dict_iterator-resume data-dict_iterator-branch callback-dict_iterator-abort
    data-generator_function-rewind sampler-generator_function-branch loss_module-generator_function-lr_find
        loss_module-generator_function-abort
    callback-closure-failed_first_step callback-closure-failed_step callback-closure-rewind sampler-closure-restore
        sampler-closure-reset loss_module-closure-resume loss_module-closure-branch data-closure-lr_find
    collator-function_with_a_list-rewind module-function_with_a_list-restore module-function_with_a_list-reset
        learner-function_with_a_list-resume learner-function_with_a_list-branch loss-function_with_a_list-lr_find
        loss-function_with_a_list-abort
    data-lru_cache-rewind sampler-lru_cache-branch loss_module-lru_cache-lr_find loss_module-lru_cache-abort
    one_tensor_then_two-resume
    one_tensor_then_two_in_a_module-resume
    two_lists_then_one-resume
    two_tensors_then_one-resume
    average_of_the_weights-resume
    average_given_the_model-resume
    average_by_key-resume
    first_weights_by_reference-branch
    buffer_made_of_the_weight-resume
    two_buffers_that_start_as_one-reset two_buffers_that_start_as_one-resume two_buffers_that_start_as_one-lr_find
    numpy_view_and_base-branch
    references_to_the_optimizer-rewind references_to_the_optimizer-restore references_to_the_optimizer-resume
        references_to_the_optimizer-branch references_to_the_optimizer-lr_find
    buffer_of_the_first_forward-failed_first_step buffer_of_the_first_forward-reset buffer_of_the_first_forward-resume
        buffer_of_the_first_forward-lr_find
    unsaved_buffer_of_the_first_forward-reset unsaved_buffer_of_the_first_forward-resume
        unsaved_buffer_of_the_first_forward-lr_find
    buffer_resized_in_place-failed_first_step buffer_resized_in_place-failed_step buffer_resized_in_place-abort
    buffer_resized_through_data-failed_first_step buffer_resized_through_data-failed_step
        buffer_resized_through_data-abort
    buffer_that_is_deleted-failed_step buffer_that_is_deleted-rewind buffer_that_is_deleted-restore
        buffer_that_is_deleted-lr_find buffer_that_is_deleted-abort
    observer_of_quantization-failed_first_step
    module_that_appears-failed_first_step module_that_appears-reset module_that_appears-resume
        module_that_appears-lr_find
    attributes_that_appear_and_go-rewind attributes_that_appear_and_go-restore attributes_that_appear_and_go-reset
        attributes_that_appear_and_go-resume
    second_optimizer_with_lbfgs-branch
    second_optimizer_made_at_the_first_step-resume
    state_by_module-failed_first_step state_by_module-failed_step state_by_module-rewind state_by_module-restore
        state_by_module-reset state_by_module-resume state_by_module-abort
    stream_that_counts-restore stream_that_counts-resume stream_that_counts-branch stream_that_counts-lr_find
    data_set_of_a_callback-failed_first_step data_set_of_a_callback-failed_step data_set_of_a_callback-rewind
        data_set_of_a_callback-restore data_set_of_a_callback-resume data_set_of_a_callback-abort
    configuration_of_a_model-failed_first_step configuration_of_a_model-failed_step configuration_of_a_model-rewind
        configuration_of_a_model-restore configuration_of_a_model-reset configuration_of_a_model-resume
        configuration_of_a_model-lr_find configuration_of_a_model-abort
    changed_in_each_step_and_rewound_module_item changed_in_each_step_and_rewound_callback_in_place
        changed_in_each_step_and_rewound_learner_assign changed_in_each_step_and_rewound_learner_item
        changed_in_each_step_and_rewound_sampler_append changed_in_each_step_and_rewound_sampler_in_place
        changed_in_each_step_and_rewound_loss_item changed_in_each_step_and_rewound_loss_module_in_place
        changed_in_each_step_and_rewound_collator_assign changed_in_each_step_and_rewound_collator_item
        changed_in_each_step_and_rewound_data_append changed_in_each_step_and_rewound_data_in_place
    changed_between_two_calls_and_restored_data_assign changed_between_two_calls_and_restored_data_append
        changed_between_two_calls_and_restored_collator_assign changed_between_two_calls_and_restored_collator_append
        changed_between_two_calls_and_restored_sampler_assign changed_between_two_calls_and_restored_sampler_append
    data_reached_by_a_branch_global data_reached_by_a_branch_closure
    rewound_over_a_replaced_part_loss_func_of_the_ring rewound_over_a_replaced_part_loss_func_named
        rewound_over_a_replaced_part_train_dataset_of_the_ring rewound_over_a_replaced_part_train_dataset_named
        rewound_over_a_replaced_part_data_collator_of_the_ring rewound_over_a_replaced_part_data_collator_named
        rewound_over_a_replaced_part_added_callback_of_the_ring rewound_over_a_replaced_part_added_callback_named
        rewound_over_a_replaced_part_removed_callback_of_the_ring rewound_over_a_replaced_part_removed_callback_named
        rewound_over_a_replaced_part_replaced_callback_of_the_ring
        rewound_over_a_replaced_part_replaced_callback_named rewound_over_a_replaced_part_method_of_the_ring
        rewound_over_a_replaced_part_method_named
    head_replaced_in_model_and_groups_restore head_replaced_in_model_and_groups_branch
        head_replaced_in_model_and_groups_resume head_replaced_in_model_and_groups_abort
        head_replaced_in_model_and_groups_failed_step
    frozen_teacher_is_not_written_callback frozen_teacher_is_not_written_learner
""".split())
