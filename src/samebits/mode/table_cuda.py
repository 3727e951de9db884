"""Where the coverage table differs for CUDA tensors.

torch's elementwise CUDA kernels run one code for every element, whatever its place, so most
functions that need an override on a CPU do not need one on a GPU. Backward kernels of windows and
scattered sums add with atomics there, in the order in which the threads come.
"""

from __future__ import annotations

from samebits.mode.table import Group, Kind

CUDA_GROUPS = (
    Group(
        Kind.TESTED,
        "each element by itself, with several roundings",
        """
        _compute_linear_combination _foreach_abs _foreach_acos _foreach_add _foreach_addcdiv
        _foreach_addcmul _foreach_asin _foreach_atan _foreach_ceil _foreach_clamp_max
        _foreach_clamp_min _foreach_copy _foreach_cos _foreach_cosh _foreach_div _foreach_erf
        _foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor _foreach_frac _foreach_lerp
        _foreach_lgamma _foreach_log _foreach_log10 _foreach_log1p _foreach_log2
        _foreach_maximum _foreach_minimum _foreach_mul _foreach_neg _foreach_pow
        _foreach_reciprocal _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign
        _foreach_sin _foreach_sinh _foreach_sqrt _foreach_sub _foreach_tan _foreach_tanh
        _foreach_trunc _foreach_zero addr atan2 atanh binary_cross_entropy_backward
        complex cosh digamma elu elu_backward exp2 floor_divide fmod gelu gelu_backward glu
        glu_backward glu_backward_jvp glu_jvp hardshrink_backward hardswish_backward
        hardtanh_backward huber_loss_backward hypot igamma igammac logaddexp logaddexp2 logit
        logit_backward maximum minimum mish mish_backward nll_loss_backward
        nll_loss2d_backward polar pow remainder rrelu_with_noise_backward rsqrt sgn sigmoid
        silu silu_backward sinh smooth_l1_loss_backward softplus softplus_backward softshrink
        softshrink_backward special_chebyshev_polynomial_t special_chebyshev_polynomial_u
        special_chebyshev_polynomial_v special_chebyshev_polynomial_w
        special_hermite_polynomial_h special_hermite_polynomial_he special_i0e
        special_laguerre_polynomial_l special_legendre_polynomial_p
        special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
        special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w sqrt
        view_as_complex view_as_complex_copy
        """,
    ),
    Group(
        Kind.EXACT,
        "moves or views data, or makes it from its arguments alone",
        """
        _cudnn_init_dropout_state _fill_mem_eff_dropout_mask_ _use_cudnn_ctc_loss
        _use_miopen_ctc_loss record_stream
        """,
    ),
    Group(
        Kind.REFUSED,
        "on a GPU it adds with atomics, in the order in which the threads come",
        """
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
        _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa_backward
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d_backward adaptive_avg_pool3d_backward
        adaptive_max_pool2d_backward adaptive_max_pool3d_backward avg_pool2d_backward
        avg_pool3d_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
        replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
        unfold_backward upsample_bicubic2d_backward upsample_bilinear2d_backward
        upsample_linear1d_backward upsample_nearest1d_backward upsample_nearest2d_backward
        upsample_nearest3d_backward
        """,
        remedy="Compute this part on the CPU, where it is covered",
    ),
    Group(
        Kind.REFUSED,
        "its attention kernel is chosen by the shapes of the whole batch",
        """
        _cudnn_attention_backward _cudnn_attention_forward _efficient_attention_backward
        _efficient_attention_forward _flash_attention_backward _flash_attention_forward
        _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_efficient_attention
        _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
        _scaled_dot_product_flash_attention_backward _triton_multi_head_attention
        _triton_scaled_dot_attention
        """,
        remedy="Call torch.nn.functional.scaled_dot_product_attention",
    ),
    Group(
        Kind.REFUSED,
        "cuDNN chooses its kernels by the size of the batch",
        """
        _conv_depthwise2d _cudnn_ctc_loss _cudnn_rnn _cudnn_rnn_backward
        _cudnn_rnn_flatten_weight batch_norm_backward_elemt batch_norm_backward_reduce
        batch_norm_elemt batch_norm_gather_stats batch_norm_gather_stats_with_counts
        batch_norm_stats cudnn_affine_grid_generator cudnn_affine_grid_generator_backward
        cudnn_batch_norm cudnn_batch_norm_backward cudnn_convolution
        cudnn_convolution_add_relu cudnn_convolution_relu cudnn_convolution_transpose
        cudnn_grid_sampler cudnn_grid_sampler_backward miopen_batch_norm
        miopen_batch_norm_backward miopen_convolution miopen_convolution_add_relu
        miopen_convolution_relu miopen_convolution_transpose miopen_ctc_loss
        miopen_depthwise_convolution miopen_rnn miopen_rnn_backward
        """,
        remedy="Compute this part on the CPU, where it is covered",
    ),
    Group(
        Kind.REFUSED,
        "a sum or product over several elements has no contract here",
        """
        _cslt_sparse_mm _cslt_sparse_mm_search _foreach_mm _foreach_norm _foreach_powsum
        _fused_rms_norm _fused_rms_norm_backward _mixed_dtypes_linear
        _scaled_grouped_mm _scaled_grouped_mm_v2 _sparse_semi_structured_addmm
        _sparse_semi_structured_linear _sparse_semi_structured_mm
        _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell_backward_impl _weight_int4pack_mm
        convolution convolution_backward logcumsumexp logsumexp mv put
        """,
        integers=True,
    ),
    Group(
        Kind.REFUSED,
        "the order of its scattered additions has no contract here",
        "scatter.reduce scatter.value_reduce",
        integers=True,
    ),
    Group(
        Kind.REFUSED,
        "equal values are taken in the order in which the threads come",
        "kthvalue median.dim mode nanmedian.dim sort topk",
        remedy="Take it from torch.sort(x, stable=True)",
    ),
    Group(
        Kind.REFUSED,
        "sparse and nested tensors have no contract",
        """
        _cslt_compress _sparse_semi_structured_apply _sparse_semi_structured_apply_dense
        _sparse_semi_structured_tile _to_sparse_semi_structured _convert_weight_to_int4pack
        """,
        remedy="Use a dense tensor",
    ),
)
