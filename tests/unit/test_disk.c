#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "engine/memory/disk_io.h"
#include "pager_rig.h"

enum { BLOBS = 37, BLOB = 3 * 4096 };

static void make(void *user, uint32_t x, void *out)
{
    (void)user;
    for (uint32_t i = 0; i < BLOB; i++)
        ((uint8_t *)out)[i] = (uint8_t)(x * 31 + i * 7 + i / 256);
}

static void make_any(void *user, uint32_t x, void *out)
{
    make(user, x % BLOBS, out);
}

static bool stop_after(void *user)
{
    return (*(int *)user)-- <= 0;
}

static char path[64];

static void temp_path(void)
{
    char dir[] = "/tmp/xd-disk-XXXXXX";
    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/pages", dir);
}

static void remove_path(void)
{
    unlink(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
}

static page_file_options file_options(void)
{
    return (page_file_options){.path = path, .fingerprint = 42, .n_blobs = BLOBS, .blob_bytes = BLOB, .make = make};
}

static void read_all(page_file *f, bool threads)
{
    disk_io_options io = {
        .file = f, .blob_bytes = BLOB, .max_requests = 8, .checksums = true, .force_threads = threads};
    disk_io *d;
    xd_err err = {0};
    cr_assert_eq(disk_io_open(&io, &d, &err), XD_OK, "%s", err.msg);
    uint8_t *mem = aligned_alloc(4096, BLOBS * BLOB), want[BLOB];
    uint32_t pushed = 0, got = 0, n;
    disk_request r[4];
    while (got < BLOBS) {
        while (pushed < BLOBS && disk_io_push(d, pushed, mem + pushed * BLOB, pushed % 3 == 0))
            pushed++;
        disk_io_wait(d);
        while ((n = disk_io_take(d, r, 4)))
            for (uint32_t i = 0; i < n; i++, got++)
                cr_assert_eq(r[i].error, 0);
    }
    for (uint32_t x = 0; x < BLOBS; x++) {
        make(NULL, x, want);
        cr_assert_eq(memcmp(want, mem + x * BLOB, BLOB), 0, "blob %u", x);
    }
    disk_io_free(d);
    free(mem);
}

Test(disk, blobs_come_back_as_they_were_made)
{
    temp_path();
    page_file_options o = file_options();
    page_file *f;
    xd_err err = {0};
    cr_assert_eq(page_file_open(&o, &f, &err), XD_OK, "%s", err.msg);
    read_all(f, false);
    read_all(f, true);
    page_file_free(f);
    int budget = 0; /* a complete file is not made again */
    o.cancelled = stop_after, o.user = &budget;
    cr_assert_eq(page_file_open(&o, &f, &err), XD_OK, "%s", err.msg);
    page_file_free(f);
    o.fingerprint++; /* another model: it would be */
    cr_assert_eq(page_file_open(&o, &f, &err), XD_CANCELLED);
    remove_path();
}

static void make_while_another_opens(void *user, uint32_t x, void *out)
{
    page_file_options o = file_options();
    page_file *f;
    xd_err err;
    cr_assert_eq(page_file_open(&o, &f, &err), XD_UNAVAILABLE, "%s", err.msg);
    make(user, x, out);
}

Test(disk, a_file_in_use_is_shared_and_never_made_anew)
{
    temp_path();
    page_file_options o = file_options();
    page_file *first, *second, *third;
    xd_err err = {0};
    o.make = make_while_another_opens;
    cr_assert_eq(page_file_open(&o, &first, &err), XD_OK, "%s", err.msg);
    cr_assert_eq(page_file_open(&o, &second, &err), XD_OK, "the same pages: %s", err.msg);
    o.fingerprint++;
    cr_assert_eq(page_file_open(&o, &third, &err), XD_BAD_CONFIG);
    cr_assert(strstr(err.msg, "in use"), "%s", err.msg);
    page_file_free(first);
    cr_assert_eq(page_file_open(&o, &third, &err), XD_BAD_CONFIG, "the second still reads it");
    read_all(second, false);
    page_file_free(second);
    o.make = make;
    cr_assert_eq(page_file_open(&o, &third, &err), XD_OK, "%s", err.msg);
    page_file_free(third);
    remove_path();
}

Test(disk, a_file_of_another_length_is_replaced_once)
{
    temp_path();
    page_file_options o = file_options();
    page_file *f;
    xd_err err = {0};
    o.n_blobs = BLOBS * 2;
    o.make = make_any;
    cr_assert_eq(page_file_open(&o, &f, &err), XD_OK, "%s", err.msg);
    page_file_free(f);
    o = file_options();
    o.fingerprint++;
    cr_assert_eq(page_file_open(&o, &f, &err), XD_OK, "%s", err.msg);
    read_all(f, false);
    page_file_free(f);
    int budget = 0;
    o.cancelled = stop_after, o.user = &budget;
    cr_assert_eq(page_file_open(&o, &f, &err), XD_OK, "made anew at every start: %s", err.msg);
    page_file_free(f);
    remove_path();
}

Test(disk, a_killed_creation_leaves_no_bad_state)
{
    temp_path();
    page_file_options o = file_options();
    page_file *f;
    xd_err err = {0};
    for (int round = 0; round < 40; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            int budget = round; /* dies in the middle, without a word to anybody */
            o.cancelled = stop_after, o.user = &budget;
            if (page_file_open(&o, &f, NULL) == XD_OK)
                _exit(0);
            kill(getpid(), SIGKILL);
        }
        int status;
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        if (round % 5 == 4) { /* and now and then somebody cuts or scribbles on it */
            int fd = open(path, O_RDWR);
            if (round % 2)
                cr_assert_eq(ftruncate(fd, 5000), 0);
            else
                cr_assert_eq(pwrite(fd, "garbage", 7, 24), 7);
            close(fd);
        }
    }
    cr_assert_eq(page_file_open(&o, &f, &err), XD_OK, "%s", err.msg);
    read_all(f, false);
    page_file_free(f);
    remove_path();
}

Test(disk, a_file_that_is_something_else_is_not_overwritten)
{
    temp_path();
    char text[8000];
    memset(text, 'x', sizeof text);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    cr_assert_eq(write(fd, text, sizeof text), (ssize_t)sizeof text);
    close(fd);
    page_file_options o = file_options();
    page_file *f;
    xd_err err = {0};
    cr_assert_eq(page_file_open(&o, &f, &err), XD_BAD_CONFIG);
    cr_assert(strstr(err.msg, "not overwritten"));
    struct stat sb;
    cr_assert_eq(stat(path, &sb), 0);
    cr_assert_eq(sb.st_size, (off_t)sizeof text);
    /* Nor would another try mend these. */
    static const char *const places[] = {"/nonexistent/pages", "/tmp", "/dev/null"};
    for (size_t i = 0; i < XD_ARRAY_LEN(places); i++) {
        o.path = places[i];
        cr_assert_eq(page_file_open(&o, &f, &err), XD_BAD_CONFIG);
        cr_assert(strstr(err.msg, "memory.nvme_path"), "%s", err.msg);
    }
    remove_path();
}

Test(disk, a_full_disk_is_said_with_numbers)
{
    /* The file size limit stands in for the disk: both make the allocation fail. */
    temp_path();
    struct rlimit rl = {BLOBS * BLOB / 2, BLOBS * BLOB / 2};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &rl), 0);
    page_file_options o = file_options();
    page_file *f;
    xd_err err = {0};
    cr_assert_eq(page_file_open(&o, &f, &err), XD_IO);
    cr_assert(strstr(err.msg, "needs"), "%s", err.msg);
    remove_path();
}

Test(disk, wrong_bytes_and_errors_are_reported_not_delivered)
{
    temp_path();
    page_file_options o = file_options();
    page_file *f;
    cr_assert_eq(page_file_open(&o, &f, NULL), XD_OK);
    int fd = open(path, O_RDWR);
    cr_assert_eq(pwrite(fd, "\xff", 1, (off_t)page_file_offset(f, 5) + 77), 1);
    close(fd);
    for (int threads = 0; threads < 2; threads++) {
        disk_io_options io = {
            .file = f, .blob_bytes = BLOB, .max_requests = 4, .checksums = true, .force_threads = threads};
        disk_io *d;
        uint8_t *mem = aligned_alloc(4096, BLOB);
        disk_request r;
        cr_assert_eq(disk_io_open(&io, &d, NULL), XD_OK);
        cr_assert(disk_io_push(d, 5, mem, true));
        disk_io_wait(d);
        cr_assert_eq(disk_io_take(d, &r, 1), 1);
        cr_assert_eq(r.error, EBADMSG);
        cr_assert(r.n_wrong == 2 && r.n_failed == 0 && r.met == EBADMSG); /* each of two tries */
        disk_io_free(d);
        io.error_rate = 1;
        cr_assert_eq(disk_io_open(&io, &d, NULL), XD_OK);
        cr_assert(disk_io_push(d, 6, mem, true));
        disk_io_wait(d);
        cr_assert_eq(disk_io_take(d, &r, 1), 1);
        cr_assert_eq(r.error, EIO);
        cr_assert(r.n_failed == 2 && r.n_wrong == 0 && r.met == EIO);
        disk_io_free(d);
        /* One in two fails: some loads go well at the second try, and tell of the first. */
        io.error_rate = 0.5;
        uint32_t well = 0, told = 0, lost = 0;
        cr_assert_eq(disk_io_open(&io, &d, NULL), XD_OK);
        for (int i = 0; i < 200; i++) {
            cr_assert(disk_io_push(d, 4, mem, true));
            disk_io_wait(d);
            cr_assert_eq(disk_io_take(d, &r, 1), 1);
            cr_assert_eq(r.n_failed, r.error ? 2u : r.met ? 1u : 0u);
            *(r.error ? &lost : r.met ? &told : &well) += 1;
        }
        cr_assert(well > 70 && told > 25 && lost > 25, "%u %u %u", well, told, lost); /* 100, 50, 50 are expected */
        disk_io_free(d);
        free(mem);
    }
    page_file_free(f);
    remove_path();
}

static bool make_right(void *user, uint32_t x, void *out)
{
    ++*(int *)user;
    make(NULL, x, out);
    return x != 9;
}

static bool make_other(void *user, uint32_t x, void *out)
{
    ++*(int *)user;
    make(NULL, x + 1, out);
    return true;
}

Test(disk, damaged_blobs_are_made_anew_once)
{
    for (int threads = 0; threads < 2; threads++) {
        temp_path();
        page_file_options o = file_options();
        page_file *f;
        cr_assert_eq(page_file_open(&o, &f, NULL), XD_OK);
        int fd = open(path, O_RDWR), made = 0;
        for (uint32_t x = 0; x < BLOBS; x++) { /* a bit in each, at the begin, in the middle, at the end */
            uint8_t b;
            off_t at = (off_t)(page_file_offset(f, x) + (uint64_t)x * (BLOB - 1) / (BLOBS - 1));
            cr_assert_eq(pread(fd, &b, 1, at), 1);
            b ^= (uint8_t)(1u << x % 8);
            cr_assert_eq(pwrite(fd, &b, 1, at), 1);
        }
        close(fd);
        disk_io_options io = {.file = f,
                              .blob_bytes = BLOB,
                              .max_requests = 4,
                              .checksums = true,
                              .force_threads = threads,
                              .remake = make_other,
                              .user = &made};
        uint8_t *mem = aligned_alloc(4096, BLOB), want[BLOB];
        for (int round = 0; round < 3; round++) { /* other bytes come of it; the right ones; the file has them */
            disk_io *d;
            disk_request r;
            io.remake = round ? make_right : make_other;
            cr_assert_eq(disk_io_open(&io, &d, NULL), XD_OK);
            for (uint32_t x = 0; x < BLOBS; x++) {
                bool lost = round == 0 || x == 9;
                cr_assert(disk_io_push(d, x, mem, true));
                disk_io_wait(d);
                cr_assert_eq(disk_io_take(d, &r, 1), 1);
                cr_assert_eq(r.error, lost ? EBADMSG : 0);
                cr_assert_eq(r.n_wrong, lost || round == 1 ? 2u : 0u);
                cr_assert_eq(r.remade, round == 1 && !lost);
                cr_assert_eq(r.not_rewritten, 0);
                make(NULL, x, want);
                cr_assert(lost || !memcmp(want, mem, BLOB), "blob %u", x);
            }
            disk_io_free(d);
        }
        cr_assert_eq(made, BLOBS + BLOBS + 1);
        free(mem);
        page_file_free(f);
        remove_path();
    }
}

/* --- the pager over three tiers ---------------------------------------------------------------------------------- */

static void rig_open_disk(rig *r, double host_share, double arena_share)
{
    temp_path();
    rig_open_model(r, 20000);
    r->cfg->memory.host_budget = (uint64_t)(host_share * (double)model_expert_bytes(r->m));
    free(r->cfg->memory.nvme_path);
    r->cfg->memory.nvme_path = strdup(path);
    rig_open(r, (uint64_t)(arena_share * (double)model_expert_bytes(r->m)));
}

Test(disk, all_bytes_are_right_over_three_tiers)
{
    static const double arenas[] = {0, 0.1, 0.3, 2};
    for (size_t i = 0; i < XD_ARRAY_LEN(arenas); i++) {
        rig r = {0};
        rig_open_disk(&r, 0.4, arenas[i]);
        cr_assert(pager_needs_require(r.p, false));
        for (int s = 0; s < 200; s++) {
            if (s % 40 == 20 && arenas[i] > 0)
                cr_assert_eq(pager_set_mode(r.p, s % 80 == 20 ? PAGER_STAGED : PAGER_DIRECT, NULL), XD_OK);
            r.n_tokens = s % 9 == 0 ? 24 : 3;
            step(&r, s % 9 == 0);
        }
        pager_stats st;
        pager_get_stats(r.p, &st);
        cr_assert_gt(st.hits_disk, 0);
        cr_assert_gt(st.bytes_disk, 0);
        cr_assert_eq(st.vram_bytes + st.host_bytes + st.disk_bytes, st.expert_bytes_total);
        cr_assert_leq(st.host_bytes, st.host_capacity_bytes);
        cr_assert_eq(st.io_errors + st.checksum_errors, 0);
        rig_close(&r);
        remove_path();
    }
}

/* The CPU is only ever given what has been brought to host memory before. */
Test(disk, what_lies_on_disk_comes_to_host_memory_before_the_cpu_computes_it)
{
    rig r = {0};
    rig_open_disk(&r, 0.4, 0.1);
    cr_assert_eq(pager_set_mode(r.p, PAGER_SHARED, NULL), XD_OK);
    for (int s = 0; s < 200; s++) {
        r.n_tokens = s % 9 == 0 ? 24 : 3;
        step(&r, s % 9 == 0);
    }
    pager_stats st;
    pager_get_stats(r.p, &st);
    cr_assert_gt(r.cpu_bytes, 0);
    cr_assert_eq(st.bytes_cpu, r.cpu_bytes);
    cr_assert_gt(st.hits_disk, 0);
    cr_assert_eq(st.io_errors + st.checksum_errors, 0);
    rig_close(&r);
    remove_path();
}

Test(disk, errors_fail_steps_but_never_bytes)
{
    rig r = {0};
    temp_path();
    rig_open_model(&r, 20000);
    r.cfg->memory.host_budget = (uint64_t)(0.4 * (double)model_expert_bytes(r.m));
    free(r.cfg->memory.nvme_path);
    r.cfg->memory.nvme_path = strdup(path);
    r.cfg->test.allow = true;
    r.cfg->test.disk_error_rate = 0.2;
    r.cfg->test.page_loss_rate = 0.2;
    rig_open(&r, model_expert_bytes(r.m) / 10);
    int good = 0, bad = 0;
    for (int s = 0; s < 300; s++) {
        xd_err err = {0};
        xd_status st = try_step(&r, s % 9 == 0, &err); /* compares every byte */
        cr_assert(st == XD_OK || st == XD_UNAVAILABLE, "%s", err.msg);
        cr_assert(st == XD_OK || strstr(err.msg, "page file"), "%s", err.msg);
        *(st ? &bad : &good) += 1;
    }
    pager_stats st;
    pager_get_stats(r.p, &st);
    cr_assert_gt(good, 0);
    cr_assert_gt(bad, 0);
    cr_assert_gt(st.io_errors, 0);
    cr_assert_gt(st.checksum_errors, 0);
    cr_assert_gt(st.loads_repaired, 0);
    rig_close(&r);
    remove_path();
}

Test(disk, damage_while_serving_is_made_good_from_the_model)
{
    rig r = {0};
    rig_open_disk(&r, 0.4, 0.1);
    struct stat sb;
    int fd = open(path, O_RDWR);
    cr_assert_eq(fstat(fd, &sb), 0);
    for (int s = 0; s < 300; s++) {
        if (s % 10 == 5)
            for (int i = 0; i < 20; i++) { /* beyond header and table, wherever that is in a blob */
                uint8_t b;
                off_t at = 8192 + (off_t)rnd(&r, (uint32_t)sb.st_size - 8192);
                cr_assert_eq(pread(fd, &b, 1, at), 1);
                b ^= 0x10;
                cr_assert_eq(pwrite(fd, &b, 1, at), 1);
            }
        step(&r, s % 9 == 0); /* compares every byte */
    }
    close(fd);
    pager_stats st;
    pager_get_stats(r.p, &st);
    cr_assert_gt(st.loads_repaired, 0);
    cr_assert_eq(st.loads_failed, 0);
    rig_close(&r);
    remove_path();
}

static void predicted_step(rig *r, bool oracle)
{
    xd_err err = {0};
    const pager_view *v;
    uint32_t n_layers = model_get_params(r->m)->n_layers, touched[64];
    cr_assert_eq(pager_step_begin(r->p, false, &v, &err), XD_OK);
    for (uint32_t l = 0; l < n_layers; l++) {
        uint64_t before = r->rng;
        pick(r, l);
        uint64_t after = r->rng;
        memset(touched, 0, sizeof touched);
        for (uint32_t i = 0; i < r->n_tokens * r->top_k; i++)
            touched[r->ids[i]]++;
        cr_assert_eq(pager_require(r->p, l, touched, &err), XD_OK, "%s", err.msg);
        plan(r, v, l);
        read_layer(r, v, l);
        if (l + 1 < n_layers) { /* the next layer's picks, looked up in advance, or their opposite */
            uint32_t *ids = malloc(r->n_tokens * r->top_k * sizeof *ids);
            memcpy(ids, r->ids, r->n_tokens * r->top_k * sizeof *ids);
            pick(r, l + 1);
            memset(touched, 0, sizeof touched);
            for (uint32_t i = 0; i < r->n_tokens * r->top_k; i++)
                touched[r->ids[i]]++;
            for (uint32_t e = 0; e < 16 && !oracle; e++)
                touched[e] = !touched[e];
            pager_predict(r->p, l + 1, touched);
            memcpy(r->ids, ids, r->n_tokens * r->top_k * sizeof *ids);
            free(ids);
            r->rng = after;
        }
        (void)before;
    }
    cr_assert_eq(pager_step_fetch(r->p, &err), XD_OK);
    cr_assert_eq(pager_step_end(r->p, &err), XD_OK);
}

Test(disk, good_predictions_are_used_and_bad_ones_switch_themselves_off)
{
    pager_stats st;
    rig r = {0};
    rig_open_disk(&r, 0.5, 0);
    r.n_tokens = 1;
    for (int s = 0; s < 200; s++)
        predicted_step(&r, true);
    pager_get_stats(r.p, &st);
    cr_assert_gt(st.predictions, 0);
    cr_assert_eq(st.predictions, st.predictions_right);
    cr_assert_gt(st.prefetched_useful_bytes, st.prefetched_wasted_bytes);
    rig_close(&r);
    remove_path();

    rig w = {0};
    rig_open_disk(&w, 0.5, 0);
    w.n_tokens = 1;
    for (int s = 0; s < 200; s++)
        predicted_step(&w, false);
    pager_get_stats(w.p, &st);
    cr_assert_eq(st.predictions_right, 0);
    uint64_t wasted = st.prefetched_wasted_bytes;
    for (int s = 0; s < 200; s++)
        predicted_step(&w, false);
    pager_get_stats(w.p, &st);
    cr_assert_leq(st.prefetched_wasted_bytes, wasted + 8 * (st.expert_bytes_total / 64),
                  "it goes on in spite of being wrong");
    rig_close(&w);
    remove_path();
}

Test(disk, budgets_that_cannot_work_are_refused_with_numbers)
{
    rig r = {0};
    rig_open_model(&r, 20000);
    xd_err err = {0};
    pager *p = NULL;
    pager_options po = {.dev = r.dev, .m = r.m, .cfg = r.cfg};
    r.cfg->memory.host_budget = model_expert_bytes(r.m) / 2;
    cr_assert_eq(pager_open(&po, &p, &err), XD_BAD_CONFIG);
    cr_assert(strstr(err.msg, "memory.nvme_path"), "%s", err.msg);
    temp_path();
    free(r.cfg->memory.nvme_path);
    r.cfg->memory.nvme_path = strdup(path);
    r.cfg->memory.host_budget = model_expert_bytes(r.m) / 8; /* 8 of 64 experts, a layer has 16 */
    cr_assert_eq(pager_open(&po, &p, &err), XD_BAD_CONFIG);
    cr_assert(strstr(err.msg, "memory.host_budget"), "%s", err.msg);
    cr_assert_null(p);
    rig_close(&r);
    remove_path();
}
