#pragma once
// GET /metrics over HTTP for whoever is on this host: a few short answers, from a thread that has
// nothing else to do. Not a web server: one answer a connection, then it is closed.

#include <poll.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"

namespace trireme {

class MetricsPort {
 public:
  /// What a client may cost: so many at a time (the oldest goes when one more comes), so long for
  /// request and answer, so long a request, so much that is read behind it.
  static constexpr std::size_t kClientsMax = 16, kRequestBytesMax = 8192, kIgnoredBytesMax = 65536;
  static constexpr std::chrono::seconds kPatience{5};

  /// Listens on 127.0.0.1; 0: on a port that the system chooses. EnvironmentError where that is
  /// refused, also since somebody else has it. `text` answers GET /metrics.
  MetricsPort(std::int64_t port, std::function<std::string()> text);
  [[nodiscard]] std::int64_t port() const { return port_; }

  /// Waits until a client or `wake` has something to say, and serves the clients. Never throws.
  void serve(int wake) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Client {
    FileDescriptor socket;
    Clock::time_point until;
    std::string request, answer;
    std::size_t sent = 0, ignored = 0;
    bool over = false;
  };

  void wait_for_news(int wake);
  void accept_clients();
  void advance(Client& client);
  void read(Client& client);
  void write(Client& client);
  void answer(Client& client);

  FileDescriptor listener_;
  std::int64_t port_ = 0;
  std::function<std::string()> text_;
  std::vector<Client> clients_;     // oldest first
  std::vector<pollfd> waits_;       // of wake, the listener, each client
  Clock::time_point accepts_from_;  // after the system refused one
};

}  // namespace trireme
