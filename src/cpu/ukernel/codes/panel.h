/*
 * panel.h: the end of V panels of codes. Behind the numbers, dv_pad columns of V_KEYS keys, lie
 * scales, [group][key], and the number of columns of a group. Included after V_KEYS.
 */

static float *v_scales(void *v, int64_t dv_pad)
{
    return (float *)(void *)((uint16_t *)v + V_KEYS * dv_pad);
}

static int64_t *v_group(void *v, int64_t dv_pad)
{
    return (int64_t *)(void *)(v_scales(v, dv_pad) + (dv_pad / 32 + 1) * ATTN_KEY_BLOCK);
}

static uint64_t v_bytes(int64_t dv_pad)
{
    return V_KEYS * (uint64_t)dv_pad * 2 +
           ((uint64_t)dv_pad / 32 + 1) * ATTN_KEY_BLOCK * sizeof(float) + sizeof(int64_t);
}
