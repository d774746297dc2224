#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "support/temporary_directory.h"
#include "telemetry/prometheus_exporter.h"

namespace trireme {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Text format 0.0.4, read as strictly as its description allows.
struct Exposition {
  std::map<std::string, std::string> types;    // of families
  std::map<std::string, std::string> samples;  // "name{labels}" to the value
  std::string fault;

  explicit Exposition(const std::string& text) {
    if (!text.ends_with('\n')) fault = "no line feed at the end";
    std::string family, helped;
    for (std::size_t at = 0; at < text.size() && fault.empty();) {
      const std::size_t end = text.find('\n', at);
      const std::string line = text.substr(at, end - at);
      at = end + 1;
      read(line, family, helped);
      if (!fault.empty()) fault += ": " + line;
    }
  }

 private:
  void read(const std::string& line, std::string& family, std::string& helped) {
    static const std::regex help(R"(# HELP ([a-z_:][a-z0-9_:]*) \S.*)"),
        type(R"(# TYPE ([a-z_:][a-z0-9_:]*) (gauge|counter))"),
        sample(R"(([a-z_:][a-z0-9_:]*)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+))"),
        value(R"(NaN|[+-]Inf|-?[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?)");
    std::smatch found;
    if (std::regex_match(line, found, help)) {
      helped = found[1];
      if (types.contains(helped)) fault = "a family twice";
    } else if (std::regex_match(line, found, type)) {
      family = found[1];
      if (family != helped) fault = "TYPE without its HELP before";
      types[family] = found[2];
      if (!family.starts_with("trireme_")) fault = "a foreign name";
      if ((found[2] == "counter") != family.ends_with("_total")) fault = "a counter's name";
    } else if (std::regex_match(line, found, sample)) {
      const std::string name = found[1], number = found[3];
      if (name != family) fault = "a sample outside of its family";
      if (std::string(found[2]).ends_with(",")) fault = "a comma too many";
      if (!std::regex_match(number, value)) fault = "no number";
      if (!samples.emplace(name + "{" + std::string(found[2]) + "}", number).second)
        fault = "a sample twice";
    } else {
      fault = "no line of this format";
    }
  }
};

PrometheusState full_state() {
  PrometheusState state;
  state.run = "runs/a \"b\"\\\n";
  state.version = "1.2";
  StepLine& step = state.step.emplace();
  step.step = 7;
  step.loss = kNaN;
  step.grad_norm = kInf;
  step.consumed_tokens = 12'345'678'901'234;
  step.mfu = 0.25;
  step.tflops_per_second = 2;
  step.time.communication_exposed = {{"data", 0.5}, {"tensor", 0.25}};
  step.experts = ExpertFigures{0.1, 0, {1.5, 3}};
  state.last_step_time = 1'800'000'000.5;
  state.evaluations["web"].loss = 2.5;
  state.evaluations["code"].loss = 3.5;
  state.joules = 9;
  state.saves = 2;
  return state;
}

TEST(PrometheusText, the_parser_of_these_tests_finds_faults) {
  const std::string good =
      "# HELP trireme_a text\n# TYPE trireme_a gauge\ntrireme_a{run=\"x\"} 1\n";
  EXPECT_EQ(Exposition(good).fault, "");
  for (const std::string& bad :
       {good + good, good + "trireme_b{run=\"x\"} 1\n", good + "trireme_a{run=\"x\"} 2\n",
        good + "trireme_a{run=\"y\"} nan\n", good + "trireme_a{run=\"y\",} 1\n",
        good + "trireme_a{run=\"\\y\"} 1\n", good + "\n", good + "trireme_a{run=\"y\"} 1",
        std::string("# HELP trireme_a text\n# TYPE trireme_a counter\n"),
        std::string("# TYPE trireme_a gauge\n"),
        std::string("# HELP other text\n# TYPE other gauge\n")}) {
    EXPECT_NE(Exposition(bad).fault, "") << bad;
  }
}

TEST(PrometheusText, whatever_is_known_is_of_the_format) {
  EXPECT_EQ(Exposition(prometheus_text({})).fault, "");
  const std::string text = prometheus_text(full_state());
  EXPECT_TRUE(text.starts_with(kPrometheusBegin));
  Exposition read(text);
  EXPECT_EQ(read.fault, "");
  const auto value = [&](const std::string& name, const std::string& labels = "") {
    return read.samples[name + R"({run="runs/a \"b\"\\\n")" + labels + "}"];
  };
  EXPECT_EQ(value("trireme_steps_total"), "7");
  EXPECT_EQ(value("trireme_tokens_total"), "12345678901234");
  EXPECT_EQ(value("trireme_loss"), "NaN");
  EXPECT_EQ(value("trireme_gradient_norm"), "+Inf");
  EXPECT_EQ(value("trireme_mfu_ratio"), "0.25");
  EXPECT_EQ(value("trireme_flops_per_second"), "2000000000000");
  EXPECT_EQ(value("trireme_last_step_timestamp_seconds"), "1800000000.5");
  EXPECT_EQ(value("trireme_communication_exposed_seconds", R"(,axis="tensor")"), "0.25");
  EXPECT_EQ(value("trireme_validation_loss", R"(,set="web")"), "2.5");
  EXPECT_EQ(value("trireme_expert_load_ratio"), "3");
  EXPECT_EQ(value("trireme_running"), "1");
  EXPECT_EQ(value("trireme_energy_joules_total"), "9");
  EXPECT_EQ(value("trireme_info", R"(,version="1.2")"), "1");
}

TEST(PrometheusText, what_is_unknown_has_no_sample) {
  const std::string text = prometheus_text({});
  for (const char* name : {"trireme_loss", "trireme_mfu_ratio", "trireme_energy_joules_total",
                           "trireme_validation_loss", "trireme_last_checkpoint_step"})
    EXPECT_EQ(text.find(name), std::string::npos) << name;
}

/// A raw socket to a port of this host.
class Connection {
 public:
  explicit Connection(std::int64_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    open_ = ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  [[nodiscard]] bool open() const { return open_; }
  void send(std::string_view text) const {
    ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  /// All that comes until the other side is done.
  [[nodiscard]] std::string receive() const {
    std::string all;
    char part[4096];
    for (ssize_t count; (count = ::recv(socket_.get(), part, sizeof part, 0)) > 0;)
      all.append(part, static_cast<std::size_t>(count));
    return all;
  }

 private:
  FileDescriptor socket_;
  bool open_ = false;
};

std::string ask(std::int64_t port, std::string_view request) {
  const Connection connection(port);
  connection.send(request);
  return connection.receive();
}

std::string body(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

constexpr std::string_view kGet = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

TEST(PrometheusPort, answers_who_asks_for_the_metrics) {
  PrometheusExporter exporter({0, {}}, {});
  ASSERT_GT(exporter.port(), 0);
  StepLine line;
  line.step = 41;
  exporter.step(line);
  const std::string answer = ask(exporter.port(), kGet);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4"), std::string::npos);
  EXPECT_NE(answer.find(fmt::format("Content-Length: {}\r\n", body(answer).size())),
            std::string::npos);
  Exposition read(body(answer));
  EXPECT_EQ(read.fault, "");
  EXPECT_EQ(read.samples["trireme_steps_total{run=\"\"}"], "41");
  EXPECT_GT(std::stod(read.samples["trireme_last_step_timestamp_seconds{run=\"\"}"]), 1.7e9);
  line.step = 42;
  exporter.step(line);
  EXPECT_NE(ask(exporter.port(), "GET /metrics?x=1 HTTP/1.0\n\n").find("steps_total{run=\"\"} 42"),
            std::string::npos);
  const std::string head = ask(exporter.port(), "HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(head.starts_with("HTTP/1.1 200 OK\r\n") && body(head).empty()) << head;
}

TEST(PrometheusPort, refuses_what_is_no_request_of_its) {
  PrometheusExporter exporter({0, {}}, {});
  const auto status = [&](std::string_view request) {
    return ask(exporter.port(), request).substr(0, 12);
  };
  EXPECT_EQ(status("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404");
  EXPECT_EQ(status("GET /metricsx HTTP/1.1\r\n\r\n"), "HTTP/1.1 404");
  EXPECT_EQ(status("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), "HTTP/1.1 405");
  EXPECT_EQ(status("\r\n\r\n"), "HTTP/1.1 400");
  EXPECT_EQ(status(std::string("\0\xff GET\n\n", 8)), "HTTP/1.1 400");
  EXPECT_EQ(status("GET /metrics\r\n\r\n"), "HTTP/1.1 400");
  EXPECT_EQ(status(std::string(9000, 'x')), "HTTP/1.1 431");
  EXPECT_EQ(status(kGet), "HTTP/1.1 200");
}

TEST(PrometheusPort, clients_that_say_nothing_stand_in_nobodys_way) {
  PrometheusExporter exporter({0, {}}, {});
  std::vector<Connection> slow;
  for (std::size_t i = 0; i < 3 * MetricsPort::kClientsMax; ++i) {
    slow.emplace_back(exporter.port());
    ASSERT_TRUE(slow.back().open());
    slow.back().send("GET /metr");
    if (i % 8 == 0) {
      EXPECT_TRUE(ask(exporter.port(), kGet).starts_with("HTTP/1.1 200")) << i;
    }
  }
  EXPECT_TRUE(ask(exporter.port(), kGet).starts_with("HTTP/1.1 200"));
  EXPECT_EQ(slow.front().receive(), "") << "the oldest has had to go";
}

TEST(PrometheusPort, who_sends_without_end_is_cut_off) {
  PrometheusExporter exporter({0, {}}, {});
  const Connection flood(exporter.port());
  const std::string much(1 << 16, 'x');
  for (int i = 0; i < 64; ++i) flood.send(much);
  (void)flood.receive();
  EXPECT_TRUE(ask(exporter.port(), kGet).starts_with("HTTP/1.1 200"));
}

TEST(PrometheusPort, a_port_that_somebody_has_is_refused_and_one_of_an_earlier_run_is_not) {
  std::int64_t port = 0;
  {
    PrometheusExporter first({0, {}}, {});
    port = first.port();
    EXPECT_TRUE(ask(port, kGet).starts_with("HTTP/1.1 200"));
    try {
      PrometheusExporter second({port, {}}, {});
      FAIL() << "two have one port";
    } catch (const EnvironmentError& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("port {} of 127.0.0.1", port)),
                std::string::npos)
          << error.what();
    }
  }
  EXPECT_FALSE(Connection(port).open()) << "nobody listens behind the end";
  EXPECT_EQ((PrometheusExporter({port, {}}, {}).port()), port);
}

TEST(PrometheusPort, other_hosts_have_no_port) {
  // Every address of 127.0.0.0/8 is this host's; only the one that was asked for answers.
  PrometheusExporter exporter({0, {}}, {});
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(exporter.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_NE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

TEST(PrometheusFile, says_what_is_known_at_the_start_and_at_the_end) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder / "train.prom";
  {
    PrometheusExporter exporter({{}, path.string()}, {});
    EXPECT_EQ(exporter.port(), 0);
    EXPECT_EQ(Exposition(read_file(path)).samples["trireme_running{run=\"\"}"], "1");
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0004, 0004U) << "the collector is another user";
    StepLine line;
    line.step = 5;
    exporter.step(line);
    exporter.skip();
    exporter.checkpoint({5, "p", 1, 0.5, 1, {}});
    exporter.checkpoint({5, "p", 1, 0.5, 1, "full"});
    exporter.evaluation({5, 2.5, 12, 50});
  }
  Exposition read(read_file(path));
  EXPECT_EQ(read.fault, "");
  EXPECT_EQ(read.samples["trireme_running{run=\"\"}"], "0");
  EXPECT_EQ(read.samples["trireme_steps_total{run=\"\"}"], "5");
  EXPECT_EQ(read.samples["trireme_skipped_steps_total{run=\"\"}"], "1");
  EXPECT_EQ(read.samples["trireme_checkpoints_total{run=\"\"}"], "1");
  EXPECT_EQ(read.samples["trireme_checkpoint_failures_total{run=\"\"}"], "1");
  EXPECT_EQ(read.samples["trireme_checkpoint_stall_seconds_total{run=\"\"}"], "1");
  EXPECT_EQ(read.samples["trireme_validation_loss{run=\"\",set=\"\"}"], "2.5");
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder.path()))
    names.insert(file.path().filename().string());
  EXPECT_EQ(names, std::set<std::string>{"train.prom"}) << "nothing half written stays";
}

TEST(PrometheusFile, one_that_cannot_be_written_is_refused_at_the_start_and_warned_of_once_later) {
  const TemporaryDirectory folder;
  EXPECT_THROW(PrometheusExporter({{}, (folder / "no/train.prom").string()}, {}), DataError);
  const std::filesystem::path inner = folder / "inner";
  std::filesystem::create_directory(inner);
  testing::internal::CaptureStderr();
  {
    // Its port tells when the thread has come round.
    PrometheusExporter exporter({0, (inner / "train.prom").string()}, {});
    std::filesystem::remove_all(inner);
    for (int i = 0; i < 3; ++i) {
      exporter.write_file();
      EXPECT_TRUE(ask(exporter.port(), kGet).starts_with("HTTP/1.1 200"));
    }
  }
  const std::string said = testing::internal::GetCapturedStderr();
  const std::size_t first = said.find("warning: log.prometheus.file");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("warning:", first + 1), std::string::npos) << said;
}

}  // namespace
}  // namespace trireme
