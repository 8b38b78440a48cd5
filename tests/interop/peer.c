/* A peer of one connection: it sends bodies of so many bytes, and wants each back.

       peer ENDPOINT DEALER|REQ|ROUTER IDENTITY HEAD ANSWER SIZE…

   HEAD and ANSWER are the frames before the body, as sent and as they come back: in hex, each with a comma behind it.
   A ROUTER's first frame is the other end's routing id. Exit 0 when all came back; it prints the version of libzmq.
*/
#include "frames.h"

#include <errno.h>

#define PATIENCE_MS 90000
#define MOST_HEAD 8

static int parse(const char *hex, frame *frames) {
    int count = 0;
    while (*hex && count < MOST_HEAD) {
        size_t size = strcspn(hex, ",") / 2;
        unsigned char *data = malloc(size + 1);
        if (!data)
            die("memory");
        for (size_t at = 0; at < size; at++)
            sscanf(hex + 2 * at, "%2hhx", &data[at]);
        frames[count++] = bytes(data, size);
        hex += 2 * size + 1;
    }
    return count;
}

/* Send a message; a ROUTER tries until it knows the other end. */
static void say(void *socket, const frame *frames, int count) {
    zmq_pollitem_t nothing = {socket, 0, 0, 0};
    for (long until = now_ms() + PATIENCE_MS; zmq_send(socket, frames[0].data, frames[0].size, ZMQ_SNDMORE) < 0;) {
        if (zmq_errno() != EHOSTUNREACH || now_ms() > until)
            die("send");
        zmq_poll(&nothing, 1, 1);
    }
    send_frames(socket, frames + 1, count - 1);
}

int main(int count, char **words) {
    static message got;
    frame request[MOST_HEAD + 1], answer[MOST_HEAD + 1];
    int one = 1, none = 0, major, minor, patch, status = 0;
    if (count < 7) {
        fprintf(stderr, "usage: peer ENDPOINT TYPE IDENTITY HEAD ANSWER SIZE...\n");
        return 2;
    }
    int type = strcmp(words[2], "REQ") == 0 ? ZMQ_REQ : strcmp(words[2], "ROUTER") == 0 ? ZMQ_ROUTER : ZMQ_DEALER;
    int asked = parse(words[4], request), answered = parse(words[5], answer);
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, type);
    set_key(socket, ZMQ_CURVE_PUBLICKEY, "CURVE_PUBLIC");
    set_key(socket, ZMQ_CURVE_SECRETKEY, "CURVE_SECRET");
    set_key(socket, ZMQ_CURVE_SERVERKEY, "CURVE_SERVER");
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    if (type == ZMQ_ROUTER)
        zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    if (*words[3])
        zmq_setsockopt(socket, ZMQ_ROUTING_ID, words[3], strlen(words[3]));
    if (zmq_connect(socket, words[1]))
        die(words[1]);
    for (int at = 6; at < count && status == 0; at++) {
        size_t size = strtoul(words[at], NULL, 10);
        unsigned char *body = malloc(size + 1);
        if (!body)
            die("memory");
        for (size_t byte = 0; byte < size; byte++)
            body[byte] = (unsigned char)(byte % 251);
        request[asked] = answer[answered] = bytes(body, size);
        say(socket, request, asked + 1);
        if (!receive_frames(socket, &got, PATIENCE_MS))
            status = 6;
        for (int next = 0; next <= answered; next++)
            if (status == 0 && (got.count != answered + 1 || !same(part(&got, next), answer[next])))
                status = 5;
        free(body);
    }
    release(&got);
    zmq_close(socket);
    zmq_ctx_term(context);
    zmq_version(&major, &minor, &patch);
    printf("libzmq %d.%d.%d\n", major, minor, patch);
    return status;
}
