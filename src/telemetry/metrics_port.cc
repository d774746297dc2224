#include "telemetry/metrics_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/error.h"

namespace trireme {

namespace {

constexpr std::string_view kTextType = "text/plain; version=0.0.4; charset=utf-8";

std::string response(std::string_view status, std::string_view type, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, type, body.size(), body);
}

std::string refusal(std::string_view status) {
  return response(status, "text/plain; charset=utf-8", fmt::format("{}\n", status));
}

/// "GET /metrics HTTP/1.1": its words; none where it is no request.
std::array<std::string_view, 2> method_and_path(std::string_view request) {
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last ||
      !line.substr(last + 1).starts_with("HTTP/1."))
    return {};
  const std::string_view target = line.substr(first + 1, last - first - 1);
  return {line.substr(0, first), target.substr(0, target.find('?'))};
}

bool is_whole(std::string_view request) {
  return request.find("\r\n\r\n") != std::string_view::npos ||
         request.find("\n\n") != std::string_view::npos;
}

bool must_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

MetricsPort::MetricsPort(std::int64_t port, std::function<std::string()> text)
    : text_(std::move(text)) {
  const auto refused = [&](const char* what) {
    throw EnvironmentError(
        "log.prometheus.port: cannot {} port {} of 127.0.0.1: {}. Choose another port, or 0 for a "
        "free one",
        what, port, errno_text(errno));
  };
  listener_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) refused("make a socket for");
  // A run that is started again finds its port, although connections of the last are remembered.
  const int yes = 1;
  ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_.get(), any, sizeof address) != 0) refused("have");
  if (::listen(listener_.get(), kClientsMax) != 0) refused("listen on");
  socklen_t size = sizeof address;
  if (::getsockname(listener_.get(), any, &size) != 0) refused("ask for");
  port_ = ntohs(address.sin_port);
  clients_.reserve(kClientsMax + 1);
}

void MetricsPort::serve(int wake) noexcept {
  try {
    wait_for_news(wake);
    accept_clients();
    const Clock::time_point now = Clock::now();
    for (Client& client : clients_) {
      advance(client);
      client.over = client.over || now >= client.until;
    }
    std::erase_if(clients_, [](const Client& client) { return client.over; });
  } catch (...) {  // no memory: nobody is owed an answer
    clients_.clear();
    accepts_from_ = Clock::now() + std::chrono::seconds(1);
  }
}

void MetricsPort::wait_for_news(int wake) {
  const Clock::time_point now = Clock::now();
  const bool accepts = now >= accepts_from_;
  Clock::time_point until = accepts ? Clock::time_point::max() : accepts_from_;
  waits_.assign({{wake, POLLIN, 0}, {accepts ? listener_.get() : -1, POLLIN, 0}});
  for (const Client& client : clients_) {
    const bool writes = client.sent < client.answer.size();
    waits_.push_back({client.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
    until = std::min(until, client.until);
  }
  int milliseconds = -1;
  if (until != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
    milliseconds = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  }
  ::poll(waits_.data(), waits_.size(), milliseconds);
}

void MetricsPort::accept_clients() {
  if (Clock::now() < accepts_from_) return;
  for (std::size_t i = 0; i < kClientsMax; ++i) {
    FileDescriptor socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      const bool is_fault = !must_wait() && errno != ECONNABORTED;
      if (is_fault) accepts_from_ = Clock::now() + std::chrono::seconds(1);  // no descriptors left
      return;
    }
    if (clients_.size() == kClientsMax) clients_.erase(clients_.begin());
    clients_.push_back({std::move(socket), Clock::now() + kPatience, {}, {}});
  }
}

void MetricsPort::advance(Client& client) {
  if (client.answer.empty()) read(client);
  if (client.sent < client.answer.size()) write(client);
  // What is left unread would have the system take the answer back when the socket is closed.
  if (!client.answer.empty() && client.sent == client.answer.size()) read(client);
}

void MetricsPort::read(Client& client) {
  std::array<char, 4096> part;
  for (;;) {
    const ssize_t count = ::recv(client.socket.get(), part.data(), part.size(), 0);
    if (count < 0 && must_wait()) return;
    if (count <= 0) {
      client.over = true;
      return;
    }
    if (!client.answer.empty()) {
      client.ignored += static_cast<std::size_t>(count);
      client.over = client.ignored > kIgnoredBytesMax;
      if (client.over) return;
      continue;
    }
    client.request.append(part.data(), static_cast<std::size_t>(count));
    if (is_whole(client.request) || client.request.size() > kRequestBytesMax) return answer(client);
  }
}

void MetricsPort::answer(Client& client) {
  const auto [method, path] = method_and_path(client.request);
  if (!is_whole(client.request)) {
    client.answer = refusal("431 Request Header Fields Too Large");
  } else if (method.empty()) {
    client.answer = refusal("400 Bad Request");
  } else if (method != "GET" && method != "HEAD") {
    client.answer = refusal("405 Method Not Allowed");
  } else if (path != "/metrics") {
    client.answer = refusal("404 Not Found");
  } else {
    client.answer = response("200 OK", kTextType, text_());
  }
  if (method == "HEAD") client.answer.resize(client.answer.find("\r\n\r\n") + 4);
}

void MetricsPort::write(Client& client) {
  while (client.sent < client.answer.size()) {
    const ssize_t count = ::send(client.socket.get(), client.answer.data() + client.sent,
                                 client.answer.size() - client.sent, MSG_NOSIGNAL);
    if (count < 0) {
      client.over = !must_wait();
      return;
    }
    client.sent += static_cast<std::size_t>(count);
  }
  ::shutdown(client.socket.get(), SHUT_WR);
}

}  // namespace trireme
