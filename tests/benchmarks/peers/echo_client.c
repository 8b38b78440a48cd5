/* A client of any MDP/0.1 broker, to measure it: a DEALER with so many requests in flight.

       echo_client ENDPOINT SERVICE REQUESTS WINDOW

   WINDOW 0 sends all of them before it waits. It prints the seconds from the first request to the last reply and its
   own processor time. Exit 1: for ten seconds no reply came, or a wrong one did.
*/
#include "frames.h"

#include <sys/resource.h>

#define PATIENCE_MS 10000

static const char body[100] = "an echo";

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double processor_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int count, char **words) {
    static message got;
    if (count != 5) {
        fprintf(stderr, "usage: echo_client ENDPOINT SERVICE REQUESTS WINDOW\n");
        return 2;
    }
    frame request[] = {text(""), text("MDPC01"), text(words[2]), bytes(body, sizeof body)};
    long requests = atol(words[3]), window = atol(words[4]), sent = 0, answered = 0;
    void *context = zmq_ctx_new();
    void *dealer = connected(context, words[1], 0, 0);
    double start = seconds();
    while (answered < requests) {
        for (; sent < requests && (window == 0 || sent - answered < window); sent++)
            send_frames(dealer, request, 4);
        if (!take_frames(dealer, &got, ZMQ_DONTWAIT) && !receive_frames(dealer, &got, PATIENCE_MS)) {
            fprintf(stderr, "no reply for %d s; %ld of %ld came\n", PATIENCE_MS / 1000, answered, requests);
            return 1;
        }
        if (got.count != 4 || !same(part(&got, 1), request[1]) || !same(part(&got, 2), request[2]) ||
            !same(part(&got, 3), request[3])) {
            frame last = part(&got, got.count - 1);
            fprintf(stderr, "a wrong reply, which ends with: %.*s\n", (int)last.size, (const char *)last.data);
            return 1;
        }
        answered++;
    }
    printf("%.6f %.6f\n", seconds() - start, processor_seconds());
    release(&got);
    zmq_close(dealer);
    zmq_ctx_term(context);
    return 0;
}
