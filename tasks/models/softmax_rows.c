/* The products of softmax regression with rows of features, each row read once.

tasks/models/linear.py has the formulas, tasks/models/softmax_rows.py compiles and calls this file.
A block of BLOCK rows goes through three stages while its rows stay in the cache:

    scores     z_ji = <y_j, x_i>            for all columns j (the classes of all lanes)
    a map      z -> r, row by row           softmax minus labels, or its derivative along z
    combine    G_j += sum_i r_ji x_i

Inside a block z and r are [columns][BLOCK]. Sums are made in an order that depends on sizes alone,
so that no bit of a result depends on the number of threads. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef REAL real; /* float or double, which the compiler is told */

/* A tile's sums stay in registers: TALL x WIDE vectors of BYTES. */
#ifdef __AVX512F__
enum { BYTES = 64, TALL = 4, WIDE = 5 };
#else
enum { BYTES = 32, TALL = 3, WIDE = 4 };
#endif
enum { W = BYTES / sizeof(real), BLOCK = 64, CHUNK = 1024, CHUNKS = 16 };
typedef real vec __attribute__((vector_size(BYTES), aligned(sizeof(real))));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const real *from) { return *(const vec *)from; }

/* z_ji = <y_j, x_i> for `rows` rows and `columns` columns, which are constants where it is called.
next: as many rows, which will be asked for soon. */
INLINE void score_tile(
    int rows, int columns, long d, const real *const *x, const real *const *next, const real *y, real *z)
{
    vec sum[TALL][WIDE] = {{{0}}};
    long k = 0;
    for (; k + W <= d; k += W)
        for (int i = 0; i < rows; i++) {
            __builtin_prefetch(next[i] + k);
            for (int j = 0; j < columns; j++)
                sum[i][j] += load(x[i] + k) * load(y + j * d + k);
        }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            real total = 0;
            for (int w = 0; w < W; w++)
                total += sum[i][j][w];
            for (long rest = k; rest < d; rest++)
                total += x[i][rest] * y[j * d + rest];
            z[j * BLOCK + i] = total;
        }
}

static void scores_of_block(long rows, long columns, long d, const real *const *x, const real *y, real *z)
{
    for (long j = 0; j < columns;) {
        long wide = columns - j < WIDE ? 1 : WIDE;
        for (long i = 0; i < rows;) {
            long tall = rows - i < TALL ? 1 : TALL;
            const real *const *own = x + i, *const *next = i + 2 * tall <= rows ? own + tall : own;
            const real *weights = y + j * d;
            real *to = z + j * BLOCK + i;
            if (tall == TALL && wide == WIDE)
                score_tile(TALL, WIDE, d, own, next, weights, to);
            else if (wide == WIDE)
                score_tile(1, WIDE, d, own, next, weights, to);
            else if (tall == TALL)
                score_tile(TALL, 1, d, own, next, weights, to);
            else
                score_tile(1, 1, d, own, next, weights, to);
            i += tall;
        }
        j += wide;
    }
}

/* G_j += sum_i r_ji x_i in `vectors` vectors of the features from x_i + k on */
INLINE void combine_tile(int vectors, int columns, long rows, long d, long k, const real *const *x, const real *r, real *G)
{
    vec sum[TALL][WIDE] = {{{0}}};
    for (long i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++)
            for (int j = 0; j < columns; j++)
                sum[v][j] += r[j * BLOCK + i] * load(x[i] + k + v * W);
    for (int v = 0; v < vectors; v++)
        for (int j = 0; j < columns; j++)
            *(vec *)(G + j * d + k + v * W) += sum[v][j];
}

/* The same for the features from `k` to `end` */
INLINE void combine_columns(
    int columns, long rows, long d, long k, long end, const real *const *x, const real *r, real *G)
{
    for (; k + TALL * W <= end; k += TALL * W)
        combine_tile(TALL, columns, rows, d, k, x, r, G);
    for (; k + W <= end; k += W)
        combine_tile(1, columns, rows, d, k, x, r, G);
    for (; k < end; k++)
        for (int j = 0; j < columns; j++) {
            real total = 0;
            for (long i = 0; i < rows; i++)
                total += r[j * BLOCK + i] * x[i][k];
            G[j * d + k] += total;
        }
}

static void combine_block(
    long rows, long columns, long d, long begin, long end, const real *const *x, const real *r, real *G)
{
    long j = 0;
    for (; j + WIDE <= columns; j += WIDE)
        combine_columns(WIDE, rows, d, begin, end, x, r + j * BLOCK, G + j * d);
    for (; j < columns; j++)
        combine_columns(1, rows, d, begin, end, x, r + j * BLOCK, G + j * d);
}

/* A call: lanes x c columns over n rows of features. picked: which rows, or NULL for the first n.
labels, weights: a row of n of them for each lane, `labels_step` and `weights_step` apart (0: the
same for all). y, G: [lanes][c][d]; in, out: [lanes][c][n]; losses: [lanes][n]. What a pass does not
need is NULL. */
typedef struct {
    long n, d, lanes, c, labels_step, weights_step;
    const real *features;
    const int64_t *picked, *labels;
    const real *weights, *y, *in;
    real *G, *out, *losses;
} Call;

/* z becomes the gradient of the weighted losses in the scores; out gets the softmax p */
static void gradient_map(const Call *call, long begin, long rows, real *z)
{
    for (long lane = 0; lane < call->lanes; lane++, z += call->c * BLOCK) {
        real top[BLOCK], sum[BLOCK], at_label[BLOCK];
        const int64_t *labels = call->labels + lane * call->labels_step + begin;
        real *p = call->out + lane * call->c * call->n + begin;
        for (long i = 0; i < rows; i++)
            top[i] = z[i], sum[i] = 0, at_label[i] = z[labels[i] * BLOCK + i];
        for (long j = 1; j < call->c; j++)
            for (long i = 0; i < rows; i++)
                top[i] = z[j * BLOCK + i] > top[i] ? z[j * BLOCK + i] : top[i];
        for (long j = 0; j < call->c; j++)
            for (long i = 0; i < rows; i++)
                sum[i] += z[j * BLOCK + i] = EXP(z[j * BLOCK + i] - top[i]);
        for (long i = 0; i < rows; i++)
            call->losses[lane * call->n + begin + i] = LOG(sum[i]) + top[i] - at_label[i];
        for (long j = 0; j < call->c; j++)
            for (long i = 0; i < rows; i++)
                p[j * call->n + i] = z[j * BLOCK + i] / sum[i];
        if (!call->G)
            continue;
        const real *weights = call->weights + lane * call->weights_step + begin;
        for (long j = 0; j < call->c; j++)
            for (long i = 0; i < rows; i++)
                z[j * BLOCK + i] = weights[i] * p[j * call->n + i];
        for (long i = 0; i < rows; i++)
            z[labels[i] * BLOCK + i] -= weights[i];
    }
}

/* z = u becomes w (p u - p <p, u>), where `in` is p; losses get <p - onehot(label), u> */
static void curvature_map(const Call *call, long begin, long rows, real *z)
{
    for (long lane = 0; lane < call->lanes; lane++, z += call->c * BLOCK) {
        real along[BLOCK] = {0};
        const int64_t *labels = call->labels + lane * call->labels_step + begin;
        const real *p = call->in + lane * call->c * call->n + begin;
        for (long j = 0; j < call->c; j++)
            for (long i = 0; i < rows; i++)
                along[i] += p[j * call->n + i] * z[j * BLOCK + i];
        for (long i = 0; i < rows; i++)
            call->losses[lane * call->n + begin + i] = along[i] - z[labels[i] * BLOCK + i];
        if (!call->G)
            continue;
        const real *weights = call->weights + lane * call->weights_step + begin;
        for (long j = 0; j < call->c; j++)
            for (long i = 0; i < rows; i++)
                z[j * BLOCK + i] = weights[i] * p[j * call->n + i] * (z[j * BLOCK + i] - along[i]);
    }
}

/* out gets z */
static void scores_map(const Call *call, long begin, long rows, real *z)
{
    for (long j = 0; j < call->lanes * call->c; j++)
        memcpy(call->out + j * call->n + begin, z + j * BLOCK, rows * sizeof(real));
}

/* z becomes `in` */
static void weights_map(const Call *call, long begin, long rows, real *z)
{
    for (long j = 0; j < call->lanes * call->c; j++)
        memcpy(z + j * BLOCK, call->in + j * call->n + begin, rows * sizeof(real));
}

typedef void Map(const Call *, long begin, long rows, real *z);

/* Finds these rows, a block at most, and makes z of their scores */
static void map_rows(const Call *call, Map *map, long begin, long rows, const real **x, real *z)
{
    for (long i = 0; i < rows; i++) {
        x[i] = call->features + (call->picked ? call->picked[begin + i] : begin + i) * call->d;
        __builtin_prefetch(x[i]); /* its page is looked up meanwhile */
        __builtin_prefetch(x[i] + call->d - 1);
    }
    if (call->y)
        scores_of_block(rows, call->lanes * call->c, call->d, x, call->y, z);
    map(call, begin, rows, z);
}

/* The rows from `begin` to `end`, block by block; their sum goes to G. */
static void go_over(const Call *call, Map *map, long begin, long end, real *z, real *G)
{
    long columns = call->lanes * call->c;
    if (G)
        memset(G, 0, columns * call->d * sizeof(real));
    for (; begin < end; begin += BLOCK) {
        long rows = end - begin < BLOCK ? end - begin : BLOCK;
        const real *x[BLOCK];
        map_rows(call, map, begin, rows, x, z);
        if (G)
            combine_block(rows, columns, call->d, 0, call->d, x, z, G);
    }
}

/* Whether all of these numbers are in 0 .. below - 1 */
static int within(const int64_t *numbers, long many, long below)
{
    int fine = 1;
    for (long i = 0; numbers && i < many; i++)
        fine &= numbers[i] >= 0 && numbers[i] < below;
    return fine;
}

/* One of the calls that lie one after the other in memory and have rows of their own */
static Call call_of(const Call *first, long group)
{
    long n = first->n, m = first->lanes * first->c;
    Call call = *first;
    call.picked = first->picked ? first->picked + group * n : NULL;
    call.labels = first->labels ? first->labels + group * first->lanes * first->labels_step : NULL;
    call.weights = first->weights ? first->weights + group * first->lanes * first->weights_step : NULL;
    call.y = first->y ? first->y + group * m * first->d : NULL;
    call.in = first->in ? first->in + group * m * n : NULL;
    call.G = first->G ? first->G + group * m * first->d : NULL;
    call.out = first->out ? first->out + group * m * n : NULL;
    call.losses = first->losses ? first->losses + group * first->lanes * n : NULL;
    return call;
}

/* `groups` calls of at most a block of rows each, all by halves, so that an odd number of them keeps
two threads busy: first each call's rows in two halves, then the features of its sum. The halves
consist of whole tiles. z: [groups][columns][BLOCK]. */
static void run_halves(const Call *first, Map *map, long groups, int threads, real *z)
{
    long n = first->n, d = first->d, m = first->lanes * first->c;
    long upper = n / 2 / TALL * TALL, middle = d / 2 / (TALL * W) * (TALL * W);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long half = 0; half < 2 * groups; half++) {
            Call call = call_of(first, half / 2);
            long begin = half % 2 ? upper : 0, end = half % 2 ? n : upper;
            const real *x[BLOCK];
            map_rows(&call, map, begin, end - begin, x, z + half / 2 * m * BLOCK + begin);
        }
#pragma omp for schedule(static)
        for (long half = 0; half < (first->G ? 2 * groups : 0); half++) {
            Call call = call_of(first, half / 2);
            long begin = half % 2 ? middle : 0, end = half % 2 ? d : middle;
            const real *x[BLOCK];
            for (long i = 0; i < n; i++)
                x[i] = call.features + (call.picked ? call.picked[i] : i) * d;
            for (long j = 0; j < m; j++)
                memset(call.G + j * d + begin, 0, (end - begin) * sizeof(real));
            combine_block(n, m, d, begin, end, x, z + half / 2 * m * BLOCK, call.G);
        }
    }
}

/* `groups` calls in chunks of rows. Returns 0, or 1 if there is no memory. */
static int run(const Call *first, Map *map, long groups, int threads)
{
    long n = first->n, m = first->lanes * first->c, size = m * first->d;
    long chunks = n < 2 * CHUNK ? 1 : n / CHUNK < CHUNKS ? n / CHUNK : CHUNKS;
    long chunk = ((n + chunks - 1) / chunks + BLOCK - 1) / BLOCK * BLOCK, failed = 0;
    real *sums = chunks > 1 && first->G ? malloc(chunks * groups * size * sizeof(real)) : NULL;
    if (chunks > 1 && first->G && !sums)
        return 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(| : failed) if (threads > 1)
    for (long task = 0; task < groups * chunks; task++) {
        long group = task / chunks, begin = task % chunks * chunk;
        long end = begin + chunk < n ? begin + chunk : n;
        Call call = call_of(first, group);
        real *z = malloc(m * BLOCK * sizeof(real));
        if (!z) {
            failed = 1;
            continue;
        }
        go_over(&call, map, begin, end, z, sums ? sums + task * size : call.G);
        free(z);
    }
    if (sums)
        memset(first->G, 0, groups * size * sizeof(real));
    for (long task = 0; sums && task < groups * chunks; task++)
        for (long k = 0; k < size; k++)
            first->G[task / chunks * size + k] += sums[task * size + k];
    free(sums);
    return failed;
}

/* One of the four passes, by its number in PASSES of tasks/models/softmax_rows.py. length: how many
rows features has. Returns 0, 1 if there is no memory, or 2 if a label or the number of a row is out
of range. */
int over_rows(
    int pass, int threads, long groups, long lanes, long c, long n, long d, long labels_step, long weights_step,
    long length, const real *features, const int64_t *picked, const int64_t *labels, const real *weights, const real *y,
    const real *in, real *G, real *out, real *losses)
{
    long rows_of_labels = labels_step ? groups * lanes : 1;
    if (!within(picked, groups * n, length) || !within(labels, rows_of_labels * n, c))
        return 2;
    Map *maps[] = {gradient_map, curvature_map, scores_map, weights_map};
    Call call = {n, d, lanes, c, labels_step, weights_step, features, picked, labels, weights, y, in, G, out, losses};
    if (groups * lanes * c * n * d < 1 << 21)
        threads = 1; /* waking another takes longer */
    if (n > BLOCK || groups == 1 || threads == 1)
        return run(&call, maps[pass], groups, threads);
    real *z = malloc(groups * lanes * c * BLOCK * sizeof(real));
    if (!z)
        return 1;
    run_halves(&call, maps[pass], groups, threads, z);
    free(z);
    return 0;
}
