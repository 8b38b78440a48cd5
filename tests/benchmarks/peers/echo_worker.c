/* A worker of any MDP/0.1 broker, to measure it: it replies with what it is sent.

       echo_worker ENDPOINT SERVICE

   SIGTERM ends it: it says good-bye to the broker.
*/
#include "frames.h"

#define HEARTBEAT_MS 1000

static volatile sig_atomic_t leaving;

static void leave(int number) {
    (void)number;
    leaving = 1;
}

int main(int count, char **words) {
    static message got;
    static frame reply[MOST_FRAMES];
    struct sigaction action = {.sa_handler = leave};
    if (count != 3) {
        fprintf(stderr, "usage: echo_worker ENDPOINT SERVICE\n");
        return 2;
    }
    frame ready[] = {text(""), text("MDPW01"), bytes("\1", 1), text(words[2])};
    frame heartbeat[] = {text(""), text("MDPW01"), bytes("\4", 1)};
    frame good_bye[] = {text(""), text("MDPW01"), bytes("\5", 1)};
    sigaction(SIGTERM, &action, NULL);
    void *context = zmq_ctx_new();
    void *dealer = connected(context, words[1], 1000, 0);
    send_frames(dealer, ready, 4);
    for (long due = now_ms() + HEARTBEAT_MS; !leaving;) {
        if (now_ms() >= due) {
            send_frames(dealer, heartbeat, 3);
            due = now_ms() + HEARTBEAT_MS;
        }
        if (!take_frames(dealer, &got, ZMQ_DONTWAIT) && !receive_frames(dealer, &got, due - now_ms()))
            continue;
        if (same(part(&got, 2), bytes("\5", 1)))
            send_frames(dealer, ready, 4); /* the broker has forgotten this worker */
        if (!same(part(&got, 2), bytes("\2", 1)))
            continue;
        for (int at = 0; at < got.count; at++)
            reply[at] = at == 2 ? bytes("\3", 1) : part(&got, at);
        send_frames(dealer, reply, got.count);
    }
    send_frames(dealer, good_bye, 3);
    release(&got);
    zmq_close(dealer);
    zmq_ctx_term(context);
    return 0;
}
