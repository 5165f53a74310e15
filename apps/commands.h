// The subcommands of `kdtree`. Each adds its flags to the command line and runs when chosen.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>

namespace kdt::apps {

// A flag combination that makes no sense: exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Ctrl-C ended what ran: exit status 130.
class Interrupted : public std::exception {};

// Adds the subcommand to `app`; returns what runs it, giving the exit status.
using Command = std::function<int()>;
Command add_generate(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_bench(CLI::App& app);

// A check that says nothing in --help; the flag's text does. `words` say what `holds` asks for.
template <typename T, typename Predicate>
CLI::Validator number_that(Predicate holds, std::string words) {
  return {[holds, words](std::string& text) -> std::string {
            T value{};
            if (CLI::detail::lexical_cast(text, value) && holds(value)) return {};
            return fmt::format("{} is not a number {}", text.empty() ? "''" : text, words);
          },
          ""};
}

// Not CLI::Range, which lets NaN through.
template <typename T>
CLI::Validator in_range(T least, T most) {
  return number_that<T>([=](T value) { return value >= least && value <= most; },
                        fmt::format("from {} to {}", least, most));
}

// Refuses the empty word that an unset shell variable leaves, which would otherwise mean zero.
inline CLI::Validator not_empty() {
  return {[](std::string& text) { return std::string(text.empty() ? "the value is empty" : ""); },
          ""};
}

// For flags, which the parser would give numbers and words: --json=3.
inline CLI::Validator no_value() {
  return {[](std::string& text) { return std::string(text == "true" ? "" : "takes no value"); },
          ""};
}

// --threads, shared by the commands that run ops.
inline void add_threads_flag(CLI::App& app, int* threads) {
  app.add_option("--threads", *threads, "Threads of the CPU backend (default: all cores)")
      ->type_name("N")
      ->check(in_range(1, 1024));
}

}  // namespace kdt::apps
