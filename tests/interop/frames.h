/* Messages of many frames, for the client and the worker beside this file and those of tests/benchmarks/peers. */
#ifndef FRAMES_H
#define FRAMES_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#define MOST_FRAMES 2048
#define QUEUE 1000

typedef struct {
    const void *data;
    size_t size;
} frame;

typedef struct {
    int count;
    zmq_msg_t parts[MOST_FRAMES];
} message;

static inline frame text(const char *characters) { return (frame){characters, strlen(characters)}; }

static frame bytes(const void *data, size_t size) { return (frame){data, size}; }

static frame part(message *got, int at) {
    return at < got->count ? (frame){zmq_msg_data(&got->parts[at]), zmq_msg_size(&got->parts[at])} : (frame){NULL, 0};
}

static int same(frame one, frame other) {
    return one.size == other.size && (one.size == 0 || memcmp(one.data, other.data, one.size) == 0);
}

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
    exit(70);
}

/* Give a socket one of its keys, in Z85, if the environment has it: all three are needed where a server wants keys. */
static void set_key(void *dealer, int option, const char *variable) {
    const char *key = getenv(variable);
    if (key && zmq_setsockopt(dealer, option, key, strlen(key) + 1))
        die(variable);
}

/* A DEALER socket that is connected. At most `queue` messages wait in it each way, 0: any number. */
static inline void *connected(void *context, const char *endpoint, int linger, int queue) {
    void *dealer = zmq_socket(context, ZMQ_DEALER);
    if (dealer) {
        set_key(dealer, ZMQ_CURVE_PUBLICKEY, "CURVE_PUBLIC");
        set_key(dealer, ZMQ_CURVE_SECRETKEY, "CURVE_SECRET");
        set_key(dealer, ZMQ_CURVE_SERVERKEY, "CURVE_SERVER");
    }
    if (!dealer || zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger) ||
        zmq_setsockopt(dealer, ZMQ_SNDHWM, &queue, sizeof queue) ||
        zmq_setsockopt(dealer, ZMQ_RCVHWM, &queue, sizeof queue) || zmq_connect(dealer, endpoint))
        die(endpoint);
    return dealer;
}

static void send_frames(void *dealer, const frame *frames, int count) {
    for (int at = 0; at < count; at++)
        if (zmq_send(dealer, frames[at].data, frames[at].size, at + 1 < count ? ZMQ_SNDMORE : 0) < 0)
            die("send");
}

static void release(message *got) {
    while (got->count)
        zmq_msg_close(&got->parts[--got->count]);
}

/* The next message; 0 when there is none and `flags` has ZMQ_DONTWAIT, or a signal came. */
static int take_frames(void *dealer, message *got, int flags) {
    int more = 1;
    release(got);
    while (more && got->count < MOST_FRAMES) {
        zmq_msg_t *next = &got->parts[got->count];
        zmq_msg_init(next);
        if (zmq_msg_recv(next, dealer, flags) < 0) {
            if (got->count == 0 && (zmq_errno() == EAGAIN || zmq_errno() == EINTR))
                return 0;
            die("receive");
        }
        got->count++;
        more = zmq_msg_more(next);
    }
    return 1;
}

/* The same, within so many milliseconds. */
static int receive_frames(void *dealer, message *got, long milliseconds) {
    zmq_pollitem_t item = {dealer, 0, ZMQ_POLLIN, 0};
    release(got);
    if (zmq_poll(&item, 1, milliseconds < 0 ? 0 : milliseconds) <= 0)
        return 0;
    return take_frames(dealer, got, 0);
}

/* Monotonic milliseconds. */
static inline long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

#endif
