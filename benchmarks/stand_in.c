/* A stand-in of SGLang's /generate and vLLM's /v1/completions that answers at once, so that only the client's own time is left.

   cc -O2 -o stand_in stand_in.c && ./stand_in      prints its port; GET /counts says what it has seen

   One thread, epoll, keep-alive. A list of prompts gets an answer each: in one body, or with "stream": true as events by index. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct { int fd; char *in; size_t have, room; char *out; size_t pending, sent, out_room; } Conn;

static long requests, prompts, connections, bytes_in, bytes_out;
static int poll_fd;

static const char *ITEM = "{\"text\":\" yes, of course\",\"output_ids\":[4420,28,282,1740],\"meta_info\":{\"id\":\"0123456789abcdef0123456789abcdef\","
  "\"finish_reason\":{\"type\":\"length\",\"length\":4},\"prompt_tokens\":200,\"completion_tokens\":4,\"cached_tokens\":100,\"e2e_latency\":0.01}";
static const char *CHOICE = "\"text\":\" yes, of course\",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":[4420,28,282,1740]}";

static void put(Conn *c, const char *data, size_t n) {
  if (c->pending + n > c->out_room) c->out = realloc(c->out, c->out_room = (c->pending + n) * 2);
  memcpy(c->out + c->pending, data, n);
  c->pending += n;
}

/* How many prompts a body has; 0: one that is no list. */
static int listed(const char *body, const char *end) {
  static const char *NAMES[] = {"\"input_ids\":", "\"prompt\":", "\"text\":"};
  for (int i = 0; i < 3; i++) {
    const char *p = memmem(body, end - body, NAMES[i], strlen(NAMES[i]));
    if (!p) continue;
    p += strlen(NAMES[i]);
    while (p < end && *p == ' ') p++;
    if (*p != '[') return 0;
    int depth = 0, n = 0, text = 0;
    for (; p < end; p++) {
      if (text) { if (*p == '\\') p++; else if (*p == '"') text = 0; }
      else if (*p == '"') { text = 1; if (depth == 1) n++; }
      else if (*p == '[') { if (++depth == 2) n++; }
      else if (*p == ']' && --depth == 0) break;
    }
    return n;
  }
  return 0;
}

static void body_of(Conn *c, char *body, size_t n, const char *status, const char *kind) {
  char head[160];
  put(c, head, snprintf(head, sizeof head, "HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", status, kind, n));
  put(c, body, n);
  free(body);
}

static void answer(Conn *c, const char *path, const char *body, const char *end) {
  char *made; size_t n; FILE *f = open_memstream(&made, &n);
  if (!strncmp(path, "/model_info ", 12)) fprintf(f, "{\"model_path\":\"stand/in\",\"is_generation\":true}");
  else if (!strncmp(path, "/v1/models ", 11)) fprintf(f, "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"root\":\"stand/in\",\"max_model_len\":8192}]}");
  else if (!strncmp(path, "/counts ", 8))
    fprintf(f, "{\"requests\":%ld,\"prompts\":%ld,\"connections\":%ld,\"bytes_in\":%ld,\"bytes_out\":%ld}", requests, prompts, connections, bytes_in, bytes_out);
  else if (strncmp(path, "/generate ", 10) && strncmp(path, "/v1/completions ", 16)) {
    fclose(f); body_of(c, made, n, "404 Not Found", "application/json"); return;
  } else {
    int many = listed(body, end), count = many ? many : 1;
    int stream = memmem(body, end - body, "\"stream\":true", 13) || memmem(body, end - body, "\"stream\": true", 14);
    int native = !strncmp(path, "/generate ", 10);
    requests++; prompts += count;
    if (native && !stream) {
      fprintf(f, many ? "[" : "");
      for (int i = 0; i < count; i++) fprintf(f, "%s%s}", i ? "," : "", ITEM);
      fprintf(f, many ? "]" : "");
    } else if (native) {
      for (int i = 0; i < count; i++) fprintf(f, "data: %s,\"index\":%d}\n\n", ITEM, i);
      fprintf(f, "data: [DONE]\n\n");
    } else {
      const char *open = "{\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":[";
      if (!stream) fprintf(f, "%s", open);
      for (int i = 0; i < count; i++) fprintf(f, stream ? "data: %s{\"index\":%d,%s],\"usage\":{\"prompt_tokens\":200,\"completion_tokens\":4,\"total_tokens\":204}}\n\n" : "%s{\"index\":%d,%s", stream ? open : i ? "," : "", i, CHOICE);
      const char *usage = "\"usage\":{\"prompt_tokens\":200,\"completion_tokens\":4,\"total_tokens\":204}}";
      fprintf(f, stream ? "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[],%s\n\ndata: [DONE]\n\n" : "],%s", usage);
    }
    if (stream) { fclose(f); body_of(c, made, n, "200 OK", "text/event-stream"); return; }
  }
  fclose(f);
  body_of(c, made, n, "200 OK", "application/json");
}

static void closed(Conn *c) { close(c->fd); free(c->in); free(c->out); free(c); }

static int flush(Conn *c) {
  while (c->sent < c->pending) {
    ssize_t n = write(c->fd, c->out + c->sent, c->pending - c->sent);
    if (n < 0) return errno == EAGAIN ? 1 : 0;
    c->sent += n; bytes_out += n;
  }
  c->sent = c->pending = 0;
  return 1;
}

/* Answers all whole requests that are there; 0: the connection is over. */
static int served(Conn *c) {
  for (;;) {
    if (c->room - c->have < 65536) c->in = realloc(c->in, c->room = c->room * 2 + 65537);
    ssize_t n = read(c->fd, c->in + c->have, c->room - c->have - 1);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return 0;
    if (n < 0) break;
    c->have += n; bytes_in += n; c->in[c->have] = 0;
  }
  size_t at = 0;
  for (;;) {
    char *head = c->in + at, *gap = memmem(head, c->have - at, "\r\n\r\n", 4);
    if (!gap) break;
    *gap = 0;
    char *length = strcasestr(head, "content-length:");
    size_t size = length ? strtoul(length + 15, 0, 10) : 0;
    *gap = '\r';
    if (c->have - (gap + 4 - c->in) < size) break;
    char *path = strchr(head, ' ') + 1;
    answer(c, path, gap + 4, gap + 4 + size);
    at = gap + 4 + size - c->in;
  }
  memmove(c->in, c->in + at, c->have - at);
  c->have -= at;
  return flush(c);
}

int main(void) {
  int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof where;
  if (bind(listener, (struct sockaddr *)&where, size) || listen(listener, 4096)) { perror("stand_in"); return 1; }
  getsockname(listener, (struct sockaddr *)&where, &size);
  printf("%d\n", ntohs(where.sin_port));
  fflush(stdout);
  poll_fd = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = 0}, found[256];
  epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &e);
  for (;;) {
    int n = epoll_wait(poll_fd, found, 256, -1);
    for (int i = 0; i < n; i++) {
      Conn *c = found[i].data.ptr;
      if (!c) {
        int fd;
        while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
          setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
          connections++;
          c = calloc(1, sizeof *c);
          c->fd = fd;
          struct epoll_event each = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
          epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &each);
        }
      } else if ((found[i].events & EPOLLOUT && !flush(c)) || (found[i].events & EPOLLIN && !served(c))) closed(c);
    }
  }
}
