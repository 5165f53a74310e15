"""Splits kv_b_proj into the matrices of absorbed MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1).

k_nope = W_UK c and v = W_UV c, so q_nope . k_nope = (W_UK^T q_nope) . c and the weighted sum of v
is W_UV times the weighted sum of c: attention can run on the latents c alone.
"""


def mla_absorb(kv_b_proj, n_heads, nope_dim, value_dim):
    """kv_b_proj [n_heads * (nope_dim + value_dim), latent], per head the nope rows, then the value
    rows -> (w_uk [n_heads, nope_dim, latent], w_uv [n_heads, value_dim, latent])."""
    per_head = kv_b_proj.reshape(n_heads, nope_dim + value_dim, -1)
    return per_head[:, :nope_dim], per_head[:, nope_dim:]


def absorb_query(q_nope, w_uk):
    """q_nope [M, H, nope] -> q_abs [M, H, latent] = q_nope W_UK."""
    return (q_nope.swapaxes(0, 1) @ w_uk).swapaxes(0, 1)


def expand_value(out, w_uv):
    """out [M, H, latent] -> [M, H, value] = out W_UV^T."""
    return (out.swapaxes(0, 1) @ w_uv.swapaxes(1, 2)).swapaxes(0, 1)
