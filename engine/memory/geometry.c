/* geometry.c - how an expert is cut into pages. Pure arithmetic, used before any memory exists (inspect, sizing). */
#include "engine/memory/pager.h"

/* Rows that kernels like to work on together; pages end on such a boundary where that costs nothing. */
#define ROW_GROUP 16u

xd_status pager_geometry(const model_layer *l, uint32_t d_model, uint64_t page_size, kern_expert_geom *ret, xd_err *err)
{
    kern_expert_geom g = {.d_model = d_model, .d_ff = l->d_ff, .halves = l->halves};
    const uint32_t cols[MODEL_MATRICES] = {d_model, d_model, l->d_ff};
    uint64_t pages = 0, largest = 0;
    if (!l->n_experts) {
        *ret = (kern_expert_geom){0};
        return XD_OK;
    }
    for (int m = 0; m < MODEL_MATRICES; m++) {
        const uint32_t rows = kern_expert_rows(&g, m);
        g.fmt[m] = l->expert_fmt[m];
        g.row_bytes[m] = kern_row_bytes(g.fmt[m], cols[m]);
        if (!rows || !g.row_bytes[m])
            return xd_fail(err, XD_BAD_MODEL, 0, "an expert's matrix is empty (%u x %u)", rows, cols[m]);
        uint64_t fit = XD_MIN(XD_MAX(page_size / g.row_bytes[m], 1u), rows);
        /* Equal pages: a slot is as large as the largest page, so a small last page would waste VRAM. */
        uint64_t n = (rows + fit - 1) / fit, even = (rows + n - 1) / n;
        uint64_t grouped = xd_align_up(even, ROW_GROUP);
        g.page_rows[m] = (uint32_t)(grouped <= fit ? grouped : even);
        g.first_page[m] = (uint32_t)pages;
        pages += (rows + g.page_rows[m] - 1) / g.page_rows[m];
        largest = XD_MAX(largest, g.page_rows[m] * g.row_bytes[m]);
    }
    if (pages > UINT32_MAX / 2 || largest > UINT32_MAX)
        return xd_fail(err, XD_BAD_MODEL, 0, "an expert of %u x %u is too large", l->d_ff, d_model);
    g.pages = (uint32_t)pages;
    *ret = g;
    return XD_OK;
}

uint64_t pager_blob_bytes(const kern_expert_geom *g)
{
    uint64_t bytes = 0;
    for (int m = 0; m < MODEL_MATRICES; m++) {
        const uint32_t rows = kern_expert_rows(g, m);
        for (uint32_t done = 0; done < rows; done += g->page_rows[m])
            bytes += xd_align_up(XD_MIN(g->page_rows[m], rows - done) * g->row_bytes[m], 256);
    }
    return bytes;
}

xd_status pager_check_in_place(const model *m, xd_err *err)
{
    for (uint32_t l = 0; l < model_get_params(m)->n_layers; l++)
        if (model_get_layer(m, l)->layout != MODEL_ROWS)
            return xd_fail(
                err, XD_UNSUPPORTED, 0,
                "layer %u: the files hold the experts otherwise than kernels read them (in another order, or "
                "their scales apart), so that they need a pool (auto takes one)",
                l);
    return XD_OK;
}

xd_status pager_check_budget(const config *cfg, const model *m, uint64_t budget, xd_err *err)
{
    const model_params *mp = model_get_params(m);
    char have[32], need[32];
    if (!cfg->memory.nvme_path || !*cfg->memory.nvme_path)
        return xd_fail(
            err, XD_BAD_CONFIG, 0,
            "memory.host_budget = %s is less than the experts' %s: set memory.nvme_path to a file on a fast disk, or "
            "raise it",
            xd_format_bytes(have, sizeof have, budget), xd_format_bytes(need, sizeof need, model_expert_bytes(m)));
    uint64_t unit = 4096;
    uint32_t most = 0;
    for (uint32_t l = 0; l < mp->n_layers; l++) {
        const model_layer *y = model_get_layer(m, l);
        kern_expert_geom g;
        xd_status st = pager_geometry(y, mp->d_model, cfg->memory.page_size, &g, err);
        if (st)
            return st;
        unit = XD_MAX(unit, xd_align_up(pager_blob_bytes(&g), 4096));
        most = XD_MAX(most, y->n_experts);
    }
    if (budget / unit >= most)
        return XD_OK;
    return xd_fail(
        err, XD_BAD_CONFIG, 0,
        "memory.host_budget = %s holds %llu experts; one layer's %u (%s) must fit, since a prompt may need them all",
        xd_format_bytes(have, sizeof have, budget), (unsigned long long)(budget / unit), most,
        xd_format_bytes(need, sizeof need, most * unit));
}
