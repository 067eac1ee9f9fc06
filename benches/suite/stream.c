/* The memory's bandwidth in bytes a second, as JSON: reading, and a = b + s * c with and without streaming stores. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { CELLS = 1 << 25, RUNS = 7 };
enum work { READ, TRIAD, STREAMED };

static double *a, *b, *c;
static volatile double sink;
static pthread_barrier_t barrier;

struct part {
    size_t from, to;
    enum work work;
    double started, ended;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double read_all(size_t from, size_t to) {
    double s = 0;
    for (size_t i = from; i < to; i++) s += b[i];
    return s;
}

static void triad(size_t from, size_t to) {
    for (size_t i = from; i < to; i++) a[i] = b[i] + 3.0 * c[i];
}

static void streamed(size_t from, size_t to) {
#if defined(__AVX512F__)
    __m512d s = _mm512_set1_pd(3.0);
    for (size_t i = from; i < to; i += 8)
        _mm512_stream_pd(a + i, _mm512_fmadd_pd(s, _mm512_load_pd(c + i), _mm512_load_pd(b + i)));
#elif defined(__SSE2__)
    __m128d s = _mm_set1_pd(3.0);
    for (size_t i = from; i < to; i += 2)
        _mm_stream_pd(a + i, _mm_add_pd(_mm_mul_pd(s, _mm_load_pd(c + i)), _mm_load_pd(b + i)));
#else
    triad(from, to);
#endif
}

static void *run(void *p) {
    struct part *part = p;
    pthread_barrier_wait(&barrier);
    part->started = now();
    if (part->work == READ) sink = read_all(part->from, part->to);
    if (part->work == TRIAD) triad(part->from, part->to);
    if (part->work == STREAMED) streamed(part->from, part->to);
    part->ended = now();
    return NULL;
}

static double rate(enum work work, int threads) {
    double best = 1e9, bytes = (work == READ ? 8.0 : 24.0) * CELLS;
    for (int r = 0; r < RUNS; r++) {
        pthread_t ids[threads];
        struct part parts[threads];
        pthread_barrier_init(&barrier, NULL, threads);
        for (int t = 0; t < threads; t++) {
            size_t from = (size_t)CELLS * t / threads / 64 * 64, to = (size_t)CELLS * (t + 1) / threads / 64 * 64;
            parts[t] = (struct part){.from = from, .to = to, .work = work};
            pthread_create(&ids[t], NULL, run, &parts[t]);
        }
        double first = 1e18, last = 0;
        for (int t = 0; t < threads; t++) {
            pthread_join(ids[t], NULL);
            if (parts[t].started < first) first = parts[t].started;
            if (parts[t].ended > last) last = parts[t].ended;
        }
        double took = last - first;
        pthread_barrier_destroy(&barrier);
        if (took < best) best = took;
    }
    return bytes / best;
}

static double *array(double value) {
    size_t bytes = sizeof(double) * CELLS;
    double *p = aligned_alloc(1 << 21, bytes);
    if (p == NULL) exit(1);
    madvise(p, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < CELLS; i++) p[i] = value;
    return p;
}

int main(int argc, char **argv) {
    int all = argc > 1 ? atoi(argv[1]) : 1;
    a = array(1), b = array(2), c = array(3);
    const char *names[] = {"read", "triad", "triad_streamed"};
    printf("{");
    for (int w = READ; w <= STREAMED; w++)
        printf("%s\"%s_one\": %.0f, \"%s_all\": %.0f", w ? ", " : "", names[w], rate(w, 1), names[w], rate(w, all));
    printf("}\n");
    return 0;
}
