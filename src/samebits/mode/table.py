"""The coverage table: what each aten operation does to the promise (for a GPU see table_cuda.py).

Groups of base names (overload dropped, in-place underscore removed), each with a kind and a reason.
An operation with an override in the registry is covered whatever its group says, so the table stays
right when an area adds one. Listed as refused is what could be refused: the reason is what a caller
reads when no override exists for his schema or dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How an operation keeps, or does not keep, the promise."""

    COVERED = "covered"  #: computed by samebits under a contract
    EXACT = "exact"  #: moves data, compares, counts, or rounds once per element (IEEE 754)
    TESTED = (
        "tested"  #: torch's kernel; tests show that neighbours, layout and threads do not matter
    )
    COMPOSITE = "composite"  #: made of other operations, each classified on its own
    RANDOM = "random"  #: run-to-run only: values depend on the size and on earlier draws
    REFUSED = "refused"  #: no contract: an error, a warning or an allow-list entry
    ELSEWHERE = "elsewhere"  #: no kernel for dense CPU tensors


@dataclass(frozen=True)
class Group:
    """Operations of one kind for one reason. Names are base names, in-place underscore removed."""

    kind: Kind
    why: str
    names: str
    remedy: str | None = None
    refused_dtypes: tuple[str, ...] = ()
    integers: bool = False  #: integers and truth values are exact on torch's kernel


GROUPS = (
    Group(
        Kind.EXACT,
        "moves or views data, or makes it from its arguments alone",
        """
        _chunk_cat _coalesce _conj _conj_copy _conj_physical _copy_from
        _copy_from_and_resize _efficientzerotensor _fw_primal _fw_primal_copy _indices_copy
        _jagged_to_padded_dense_forward _lazy_clone _make_dual _make_dual_copy
        _mkldnn_reshape _mkldnn_transpose _neg_view _neg_view_copy
        _new_zeros_with_same_feature_meta _pack_padded_sequence
        _padded_dense_to_jagged_forward _pin_memory _reshape_alias _reshape_alias_copy
        _reshape_copy _resize_output _spdiags _stack _to_copy _to_dense _unsafe_index
        _unsafe_index_put _unsafe_masked_index _unsafe_view _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d _values_copy alias alias_copy
        arange as_strided as_strided_copy as_strided_scatter block_diag cat channel_shuffle
        clone conj_physical constant_pad_nd copy copy_sparse_to_sparse detach detach_copy
        diag_embed diagonal diagonal_backward diagonal_copy diagonal_scatter embedding empty
        empty_like empty_permuted empty_strided expand expand_copy eye fft_fftfreq
        fft_rfftfreq fill flip from_file full full_like gather im2col index index_copy
        index_fill index_put index_select lift lift_fresh lift_fresh_copy linspace logspace
        lu_unpack masked_fill masked_scatter masked_select max_unpool2d max_unpool3d
        narrow_copy native_channel_shuffle new_empty new_empty_strided new_full new_ones
        new_zeros nonzero nonzero_static ones ones_like permute permute_copy pixel_shuffle
        pixel_unshuffle range reflection_pad1d reflection_pad2d reflection_pad3d repeat
        repeat_interleave replication_pad1d replication_pad2d replication_pad3d resize
        resize_as roll rot90 scalar_tensor scatter select select_backward select_copy
        select_scatter set slice slice_backward slice_copy slice_inverse slice_scatter split
        split_copy split_with_sizes split_with_sizes_copy squeeze squeeze_copy stack t
        t_copy take transpose transpose_copy tril tril_indices triu triu_indices unbind
        unbind_copy unfold unfold_copy unsafe_split unsafe_split_with_sizes unsqueeze
        unsqueeze_copy upsample_nearest1d upsample_nearest2d upsample_nearest3d view
        view_as_real view_as_real_copy view_copy where zero zeros zeros_like
        """,
    ),
    Group(
        Kind.EXACT,
        "compares, selects, counts or works on integers and truth values",
        """
        __ilshift__ __irshift__ __lshift__ __rshift__ _aminmax _assert_async _assert_scalar
        _assert_tensor_metadata _coalesced _convert_indices_from_coo_to_csr
        _convert_indices_from_csr_to_coo _cummax_helper _cummin_helper
        _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
        _functional_sym_constrain_range_for_size _fused_sdp_choice _has_same_storage_numel
        _histogramdd_bin_edges _int_mm _is_all_true _is_any_true _linalg_check_errors
        _local_scalar_dense _make_dep_token _nested_compute_contiguous_strides_offsets
        _print _test_parallel_materialize _unique _unique2
        _validate_compressed_sparse_indices adaptive_max_pool2d adaptive_max_pool3d all amax
        amin aminmax any argmax argmin bitwise_and bitwise_left_shift bitwise_not bitwise_or
        bitwise_right_shift bitwise_xor bucketize ceil clamp clamp_max clamp_min copysign
        count_nonzero cummax cummin dense_dim eq equal floor fmax fmin fractional_max_pool2d
        fractional_max_pool3d frexp gcd ge gt hash_tensor heaviside histc is_coalesced
        is_pinned is_same_size is_set_to isin isinf isnan isneginf isposinf kthvalue lcm le
        logical_and logical_not logical_or logical_xor lt max max_pool2d_backward
        max_pool2d_with_indices max_pool3d_with_indices median min mode nan_to_num nanmedian
        ne nextafter relu round searchsorted sgn sign signbit sort sparse_dim
        sym_constrain_range sym_constrain_range_for_size topk trunc unique_consecutive
        unique_dim unique_dim_consecutive
        """,
    ),
    Group(
        Kind.EXACT,
        "one IEEE 754 operation per element",
        """
        _masked_scale _prelu_kernel abs add deg2rad div frac hardshrink hardtanh leaky_relu
        leaky_relu_backward mul native_dropout_backward neg rad2deg reciprocal rsub sub
        threshold threshold_backward
        """,
    ),
    Group(
        Kind.TESTED,
        "each element by itself, with several roundings",
        """
        _prelu_kernel_backward acos acosh addcdiv addcmul angle asin asinh atan cos erf erfc
        erfinv exp expm1 hardsigmoid hardsigmoid_backward hardswish i0 lerp lgamma
        linalg_cross log log10 log1p log2 log_sigmoid_backward log_sigmoid_forward
        mse_loss_backward mvlgamma polygamma sigmoid_backward sin sinc special_airy_ai
        special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_entr
        special_erfcx special_i1 special_i1e special_log_ndtr special_modified_bessel_i0
        special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
        special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
        special_spherical_bessel_j0 special_xlog1py special_zeta tan tanh tanh_backward
        xlogy
        """,
    ),
    Group(
        Kind.TESTED,
        "adds the few elements of a window in a fixed order",
        """
        _adaptive_avg_pool3d _adaptive_avg_pool3d_backward _upsample_bicubic2d_aa
        _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa
        _upsample_bilinear2d_aa_backward _upsample_nearest_exact1d_backward
        _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
        adaptive_avg_pool2d adaptive_avg_pool3d adaptive_avg_pool3d_backward
        adaptive_max_pool2d_backward adaptive_max_pool3d_backward avg_pool2d
        avg_pool2d_backward avg_pool3d avg_pool3d_backward col2im
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
        replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
        unfold_backward upsample_bicubic2d upsample_bicubic2d_backward upsample_linear1d
        upsample_linear1d_backward upsample_nearest1d_backward upsample_nearest2d_backward
        upsample_nearest3d_backward
        """,
    ),
    Group(
        Kind.TESTED,
        "weighs four neighbours in a fixed order, except in float16",
        """
        upsample_bilinear2d upsample_bilinear2d_backward
        """,
        refused_dtypes=("float16",),
    ),
    Group(
        Kind.REFUSED,
        "torch computes an element in other ways at other places in memory",
        """
        _add_relu _compute_linear_combination addr atan2 atanh binary_cross_entropy_backward
        cosh digamma elu elu_backward exp2 floor_divide fmod gelu gelu_backward glu
        glu_backward glu_backward_jvp glu_jvp hardshrink_backward hardswish_backward
        hardtanh_backward huber_loss_backward hypot igamma igammac logaddexp logaddexp2
        logit logit_backward maximum minimum mish mish_backward pow remainder
        rrelu_with_noise_backward rsqrt sigmoid silu silu_backward sinh
        smooth_l1_loss_backward softplus softplus_backward softshrink softshrink_backward
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u
        special_chebyshev_polynomial_v special_chebyshev_polynomial_w
        special_hermite_polynomial_h special_hermite_polynomial_he special_i0e
        special_laguerre_polynomial_l special_legendre_polynomial_p
        special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
        special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w sqrt
        """,
    ),
    Group(
        Kind.REFUSED,
        "torch multiplies and divides complex numbers in other ways at other places in memory",
        """
        complex polar view_as_complex view_as_complex_copy
        """,
        remedy="Compute with the real and the imaginary part",
    ),
    Group(
        Kind.COMPOSITE,
        "runs other operations through the dispatcher",
        """
        _batch_norm_no_update _batch_norm_with_update_functional _convolution
        _embedding_bag_backward _foreach_abs _foreach_acos _foreach_add _foreach_addcdiv
        _foreach_addcmul _foreach_asin _foreach_atan _foreach_ceil _foreach_clamp_max
        _foreach_clamp_min _foreach_clone _foreach_copy _foreach_cos _foreach_cosh
        _foreach_div _foreach_erf _foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor
        _foreach_frac _foreach_lerp _foreach_lgamma _foreach_log _foreach_log10
        _foreach_log1p _foreach_log2 _foreach_max _foreach_maximum _foreach_minimum
        _foreach_mm _foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_powsum
        _foreach_reciprocal _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign
        _foreach_sin _foreach_sinh _foreach_sqrt _foreach_sub _foreach_tan _foreach_tanh
        _foreach_trunc _foreach_zero _grouped_mm _index_put_impl
        _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
        _safe_softmax _trilinear _unsafe_masked_index_put_accumulate adaptive_avg_pool1d
        affine_grid_generator allclose avg_pool1d bartlett_window
        binary_cross_entropy_with_logits blackman_window celu conv_tbc convolution
        convolution_backward dist hamming_window hann_window kaiser_window ldexp linear
        log_softmax logcumsumexp logsumexp masked_scatter_backward mv normal_functional put
        soft_margin_loss soft_margin_loss_backward softmax
        """,
    ),
    Group(
        Kind.RANDOM,
        "run-to-run deterministic for a given seed; values depend on the size of the tensor",
        """
        _fused_dropout _philox_normal _philox_uniform _sample_dirichlet _standard_gamma
        bernoulli binomial cauchy exponential geometric log_normal native_dropout normal
        poisson rand rand_like randint randint_like randn randn_like random randperm
        rrelu_with_noise rrelu_with_noise_functional uniform
        """,
    ),
    Group(
        Kind.REFUSED,
        "a row's draw depends on its place in the batch",
        "multinomial",
        remedy="Call samebits.ops.sample: a row is drawn by its own seed and position",
    ),
    Group(
        Kind.REFUSED,
        "a sum or product over several elements has no contract here",
        """
        _addmm_activation _logcumsumexp _scaled_mm _scaled_mm_v2 _slow_conv2d_backward
        _slow_conv2d_forward _thnn_fused_gru_cell _thnn_fused_lstm_cell _weight_int8pack_mm
        addbmm addmm addmv baddbmm bmm conv_depthwise3d cumprod cumsum dot embedding_renorm
        linalg__powsum linalg_vector_norm mean mm nansum native_norm norm prod renorm
        slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d
        slow_conv_transpose3d std std_mean sum trace var var_mean vdot
        """,
        integers=True,
    ),
    Group(
        Kind.REFUSED,
        "its softmax, norm or attention kernel has no contract here",
        """
        _batch_norm_with_update _log_softmax _log_softmax_backward_data _masked_softmax
        _masked_softmax_backward _native_batch_norm_legit _native_multi_head_attention
        _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_fused_attention_overrideable
        _scaled_dot_product_fused_attention_overrideable_backward _softmax
        _softmax_backward_data _transform_bias_rescale_qkv _transformer_encoder_layer_fwd
        _weight_norm_interface _weight_norm_interface_backward batch_norm_backward
        batch_norm_update_stats native_batch_norm native_batch_norm_backward
        native_group_norm native_group_norm_backward native_layer_norm
        native_layer_norm_backward
        """,
    ),
    Group(
        Kind.REFUSED,
        "the order of its scattered additions has no contract here",
        """
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _embedding_bag
        _embedding_bag_dense_backward _embedding_bag_forward_only
        _embedding_bag_per_sample_weights_backward _histogramdd_from_bin_cts
        _histogramdd_from_bin_tensors _index_put_impl_ _segment_reduce_backward bincount
        embedding_dense_backward fractional_max_pool2d_backward
        fractional_max_pool3d_backward histogram index_add index_reduce scatter_add
        scatter_reduce segment_reduce
        """,
        integers=True,
    ),
    Group(
        Kind.REFUSED,
        "its interpolation has no contract",
        """
        _grid_sampler_2d_cpu_fallback _grid_sampler_2d_cpu_fallback_backward
        _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward grid_sampler_2d
        grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward
        upsample_trilinear3d upsample_trilinear3d_backward
        """,
    ),
    Group(
        Kind.REFUSED,
        "its loss sums have no contract",
        """
        _ctc_loss _ctc_loss_backward binary_cross_entropy huber_loss mse_loss
        multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_backward
        multilabel_margin_loss_forward nll_loss2d_backward nll_loss2d_forward
        nll_loss_backward nll_loss_forward smooth_l1_loss
        """,
    ),
    Group(
        Kind.REFUSED,
        "the way it is computed depends on the number of rows",
        "_cdist_backward _cdist_forward _euclidean_dist _pdist_backward _pdist_forward",
        remedy="Write the distance as a sum: ((a[:, None] - b[None]) ** 2).sum(-1).sqrt()",
    ),
    Group(
        Kind.REFUSED,
        "the order of its products depends on the number of rows",
        "chain_matmul linalg_multi_dot",
        remedy="Write the products with @ in the order that you want",
    ),
    Group(
        Kind.REFUSED,
        "a Fourier transform has no contract",
        "_fft_c2c _fft_c2r _fft_r2c",
    ),
    Group(
        Kind.REFUSED,
        "a matrix factorisation or solver has no contract",
        """
        _cholesky_solve_helper _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet
        _linalg_solve_ex _linalg_svd cholesky cholesky_inverse cholesky_solve geqrf
        linalg_cholesky_ex linalg_eig linalg_eigvals linalg_householder_product
        linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu
        linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr
        linalg_solve_triangular ormqr triangular_solve
        """,
    ),
    Group(
        Kind.REFUSED,
        "a gradient or sampler of a special distribution has no contract",
        "_dirichlet_grad _standard_gamma_grad",
    ),
    Group(
        Kind.REFUSED,
        "a fused optimizer step has no contract",
        """
        _amp_foreach_non_finite_check_and_unscale _amp_update_scale _fused_adagrad
        _fused_adam _fused_adamw _fused_sgd
        """,
        remedy="Use the optimizer with fused=False",
    ),
    Group(
        Kind.REFUSED,
        "a scale of quantised data may depend on the whole batch",
        """
        _convert_weight_to_int4pack_for_cpu _dyn_quant_matmul_4bit
        _dyn_quant_pack_4bit_weight _empty_affine_quantized
        _empty_per_channel_affine_quantized _fake_quantize_learnable_per_channel_affine
        _fake_quantize_learnable_per_channel_affine_backward
        _fake_quantize_learnable_per_tensor_affine
        _fake_quantize_learnable_per_tensor_affine_backward
        _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        _fused_moving_avg_obs_fq_helper _fused_moving_avg_obs_fq_helper_functional
        _make_per_channel_quantized_tensor _make_per_tensor_quantized_tensor
        _weight_int4pack_mm_for_cpu dequantize empty_quantized
        fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask
        int_repr q_per_channel_scales q_per_channel_zero_points quantize_per_channel
        quantize_per_tensor quantize_per_tensor_dynamic quantized_batch_norm quantized_gru
        quantized_lstm quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d
        """,
        remedy="Dequantise the weights and compute in float32, bfloat16 or float16",
    ),
    Group(
        Kind.REFUSED,
        "oneDNN, NNPACK and MKL choose their kernels by the size of the batch",
        """
        _nnpack_spatial_convolution mkldnn_adaptive_avg_pool2d_backward mkldnn_convolution
        mkldnn_linear mkldnn_linear_backward mkldnn_linear_backward_input
        mkldnn_linear_backward_weights mkldnn_max_pool2d mkldnn_max_pool2d_backward
        mkldnn_max_pool3d mkldnn_max_pool3d_backward mkldnn_reorder_conv2d_weight
        mkldnn_reorder_conv3d_weight mkldnn_rnn_layer mkldnn_rnn_layer_backward to_mkldnn
        """,
    ),
    Group(
        Kind.REFUSED,
        "sparse and nested tensors have no contract",
        """
        _nested_from_padded _nested_from_padded_and_nested_example _nested_get_values_copy
        _nested_tensor_from_mask _nested_tensor_from_mask_left_aligned
        _nested_tensor_from_tensor_list _nested_tensor_size _nested_tensor_storage_offsets
        _nested_tensor_strides _nested_view_from_buffer _nested_view_from_buffer_copy
        _nested_view_from_jagged_copy _sparse_addmm _sparse_broadcast_to_copy
        _sparse_compressed_tensor_with_dims _sparse_coo_tensor_with_dims
        _sparse_coo_tensor_with_dims_and_tensors _sparse_csr_prod _sparse_csr_sum
        _sparse_log_softmax _sparse_log_softmax_backward_data _sparse_mask_projection
        _sparse_softmax _sparse_softmax_backward_data _sparse_sparse_matmul _sparse_sum
        _sparse_sum_backward _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc
        _to_sparse_csr ccol_indices ccol_indices_copy col_indices col_indices_copy
        crow_indices crow_indices_copy indices indices_copy resize_as_sparse row_indices
        row_indices_copy sparse_compressed_tensor sparse_coo_tensor sparse_mask
        sparse_resize sparse_resize_and_clear sspaddmm to_padded_tensor values values_copy
        """,
        remedy="Use a dense tensor",
    ),
    Group(
        Kind.ELSEWHERE,
        "kernels of other devices, or for torch's own tests",
        """
        _cudnn_ctc_loss _cudnn_init_dropout_state _cudnn_rnn _cudnn_rnn_backward
        _cudnn_rnn_flatten_weight _foobar _lstm_mps _mps_convolution
        _mps_convolution_transpose _test_autograd_multiple_dispatch
        _test_autograd_multiple_dispatch_view _test_autograd_multiple_dispatch_view_copy
        _test_functorch_fallback _test_optional_filled_intlist _test_optional_floatlist
        _test_optional_intlist _test_warn_in_autograd _thnn_fused_gru_cell_backward
        _thnn_fused_lstm_cell_backward_impl _triton_multi_head_attention
        _triton_scaled_dot_attention batch_norm_backward_elemt batch_norm_backward_reduce
        batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_stats
        convolution_backward_overrideable convolution_overrideable
        cudnn_affine_grid_generator cudnn_affine_grid_generator_backward
        cudnn_batch_norm_backward cudnn_convolution_add_relu cudnn_convolution_relu
        cudnn_convolution_transpose cudnn_grid_sampler cudnn_grid_sampler_backward
        linear_backward lstm_mps_backward matmul_backward miopen_batch_norm
        miopen_batch_norm_backward miopen_convolution miopen_convolution_transpose
        miopen_ctc_loss miopen_depthwise_convolution miopen_rnn miopen_rnn_backward
        mps_convolution_backward mps_convolution_transpose_backward
        """,
    ),
)
