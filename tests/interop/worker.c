/* A worker, written from titanic/PROTOCOL.md alone: it replies with its request's first frame in capitals.

       worker ENDPOINT SERVICE

   What it is asked for can be something else: `fail` gets an error reply, `parts` two PARTIALs and a FINAL. It prints
   `registered` each time the broker takes it, and `lost` each time it has to connect again. SIGTERM ends it: it says
   good-bye to the broker.
*/
#include "frames.h"

#include <ctype.h>

#define HEARTBEAT_MS 500
#define SILENCE_MS 10000
#define FIRST_WAIT_MS 1000
#define LONGEST_WAIT_MS 32000

static volatile sig_atomic_t leaving;

static void leave(int number) {
    (void)number;
    leaving = 1;
}

static long sent_at;

static void say(void *dealer, const char *command, const frame *more, int count) {
    frame frames[8] = {text("MDPW02"), bytes(command, 1)};
    for (int at = 0; at < count; at++)
        frames[2 + at] = more[at];
    send_frames(dealer, frames, 2 + count);
    sent_at = now_ms();
}

static void work(void *dealer, message *got) {
    frame client = part(got, 2), body = part(got, 4);
    frame envelope[5] = {client, text("")};
    if (same(body, text("fail"))) {
        envelope[2] = text("MDPE01");
        envelope[3] = text("422 told to fail");
        envelope[4] = text("a detail");
        say(dealer, "\4", envelope, 5);
    } else if (same(body, text("parts"))) {
        envelope[2] = text("one");
        say(dealer, "\3", envelope, 3);
        envelope[2] = text("two");
        say(dealer, "\3", envelope, 3);
        envelope[2] = text("");
        say(dealer, "\4", envelope, 3);
    } else {
        char *loud = malloc(body.size + 1);
        if (!loud)
            die("memory");
        for (size_t at = 0; at < body.size; at++)
            loud[at] = (char)toupper(((const unsigned char *)body.data)[at]);
        envelope[2] = bytes(loud, body.size);
        say(dealer, "\4", envelope, 3);
        free(loud);
    }
}

/* One connection, from READY until it is of no more use. Whether the broker said anything good. */
static int serve(void *dealer, const char *service, message *got) {
    int registered = 0;
    frame name = text(service);
    long heard_at = now_ms();
    say(dealer, "\1", &name, 1);
    while (!leaving) {
        long now = now_ms();
        if (now - heard_at >= SILENCE_MS)
            return registered;
        if (now - sent_at >= HEARTBEAT_MS)
            say(dealer, "\5", NULL, 0);
        long due = sent_at + HEARTBEAT_MS < heard_at + SILENCE_MS ? sent_at + HEARTBEAT_MS : heard_at + SILENCE_MS;
        if (!receive_frames(dealer, got, due - now_ms()))
            continue;
        heard_at = now_ms();
        frame command = part(got, 1);
        int is_request = same(command, bytes("\2", 1)) && got->count >= 5 && part(got, 3).size == 0;
        if (!same(part(got, 0), text("MDPW02")) || !(is_request || same(command, bytes("\5", 1))))
            return registered;
        if (!registered) {
            registered = 1;
            printf("registered\n");
        }
        if (is_request)
            work(dealer, got);
    }
    say(dealer, "\6", NULL, 0);
    return registered;
}

int main(int count, char **words) {
    static message got;
    struct sigaction action = {.sa_handler = leave};
    long wait = FIRST_WAIT_MS;
    if (count != 3) {
        fprintf(stderr, "usage: worker ENDPOINT SERVICE\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    sigaction(SIGTERM, &action, NULL);
    void *context = zmq_ctx_new();
    while (!leaving) {
        void *dealer = connected(context, words[1], 1000, QUEUE);
        if (serve(dealer, words[2], &got))
            wait = FIRST_WAIT_MS;
        zmq_close(dealer);
        if (!leaving) {
            struct timespec pause = {wait / 1000, wait % 1000 * 1000000L};
            printf("lost\n");
            nanosleep(&pause, NULL);
            wait = 2 * wait < LONGEST_WAIT_MS ? 2 * wait : LONGEST_WAIT_MS;
        }
    }
    release(&got);
    zmq_ctx_term(context);
    return 0;
}
