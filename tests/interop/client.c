/* A client of Titanic, written from titanic/PROTOCOL.md alone.

       client ENDPOINT ask SERVICE FRAME…    one request: prints the frames of the reply, one a line

   exit   0  the status is 200, or the service has none (mmi., a plain worker)
          1  500 with a state: the request has ended without a reply, for good
          3  300: pending
          4  400
          5  500 alone, or an error reply of MDP
          6  nobody answered, after three tries
*/
#include "frames.h"

#define TIMEOUT_MS 5000
#define TRIES 3

static int starts_with(frame given, const char *word) {
    return given.size >= strlen(word) && memcmp(given.data, word, strlen(word)) == 0;
}

/* Send a request until its FINAL comes. The frames of PARTIALs are printed as they come. Where the FINAL's body begins
   in `got`; 0 when nobody answered. */
static int ask(void *dealer, const char *service, char **body, int count, long timeout, message *got, int *parts) {
    static unsigned int number;
    frame *frames = calloc(5 + count, sizeof(frame));
    if (!frames)
        die("memory");
    for (int attempt = 0; attempt < TRIES; attempt++) {
        char id[16];
        snprintf(id, sizeof id, "%u", ++number);
        frames[0] = text(id);
        frames[1] = text("");
        frames[2] = text("MDPC02");
        frames[3] = bytes("\1", 1);
        frames[4] = text(service);
        for (int at = 0; at < count; at++)
            frames[5 + at] = text(body[at]);
        send_frames(dealer, frames, 5 + count);
        for (long until = now_ms() + timeout; receive_frames(dealer, got, until - now_ms());) {
            frame command = part(got, 3);
            if (got->count < 6 || !same(part(got, 0), text(id)) || part(got, 1).size != 0 ||
                !same(part(got, 2), text("MDPC02")) || !same(part(got, 4), text(service)))
                continue; /* late, or none of ours */
            if (same(command, bytes("\3", 1))) {
                free(frames);
                return 5;
            }
            if (same(command, bytes("\2", 1)))
                for (int at = 5; at < got->count; at++, ++*parts) {
                    frame one = part(got, at);
                    printf("%.*s\n", (int)one.size, (const char *)one.data);
                }
            until = now_ms() + timeout;
        }
    }
    free(frames);
    return 0;
}

static int meaning(const char *service, message *got, int at) {
    frame status = part(got, at);
    if (same(status, text("MDPE01")) && got->count > at + 1)
        return 5;
    if (strncmp(service, "titanic.", 8) != 0)
        return 0;
    if (starts_with(status, "200"))
        return 0;
    if (starts_with(status, "300"))
        return 3;
    if (starts_with(status, "400"))
        return 4;
    return got->count > at + 1 ? 1 : 5;
}

int main(int count, char **words) {
    static message got;
    if (count < 5 || strcmp(words[2], "ask") != 0) {
        fprintf(stderr, "usage: client ENDPOINT ask SERVICE FRAME...\n");
        return 2;
    }
    const char *service = words[3];
    long timeout = TIMEOUT_MS;
    if (strcmp(service, "titanic.wait") == 0)
        timeout += (long)(atof(words[4]) * 1000);
    void *context = zmq_ctx_new();
    void *dealer = connected(context, words[1], 0, QUEUE);
    int code = 6, parts = 0;
    int at = ask(dealer, service, words + 4, count - 4, timeout, &got, &parts);
    if (at) {
        code = meaning(service, &got, at);
        if (!(parts && got.count == at + 1 && part(&got, at).size == 0)) /* it only ends the parts */
            for (int next = at; next < got.count; next++) {
                frame one = part(&got, next);
                printf("%.*s\n", (int)one.size, (const char *)one.data);
            }
    } else {
        fprintf(stderr, "nobody answered\n");
    }
    release(&got);
    zmq_close(dealer);
    zmq_ctx_term(context);
    return code;
}
