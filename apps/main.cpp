// kdtree: one binary with subcommands. Exit status 0, 1 for an error, 2 for wrong usage, 130 after
// Ctrl-C. An error prints one line on stderr, complete in itself.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/output.h"
#include "base/error.h"

namespace {

using namespace kdt::apps;

// Starts the program again with a bound on how long OpenMP's threads spin where they wait, which
// GCC's runtime reads before main() and nowhere else. It is milliseconds otherwise: a little faster
// on idle cores, several times slower where another process uses one of them. The user's own
// setting stands.
void limit_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  std::error_code error;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && ::setenv("GOMP_SPINCOUNT", "1000", 1) == 0) ::execv(binary.c_str(), argv);
}

// One line on stderr, whatever file names and flags bring into the message.
void print_error(std::string message) {
  for (char& c : message)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  std::fprintf(stderr, "kdtree: %s\n", message.c_str());
}

int run(const Command& command) {
  try {
    return command();
  } catch (const UsageError& error) {
    print_error(error.what());
    return 2;
  } catch (const Interrupted&) {
    return kInterruptedStatus;
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return 1;
}

bool is_flag(const std::string& word) {
  return word.starts_with('-');
}

std::string problem_without_command(const std::vector<std::string>& words) {
  const std::string wanted = "give a command: generate, inspect or bench";
  if (words.empty()) return wanted;
  if (is_flag(words[0])) return fmt::format("'{}' is no flag of kdtree; {}", words[0], wanted);
  return fmt::format("there is no command '{}'", words[0]);
}

int complain(const CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const std::vector<std::string> unknown = app.remaining(true);
  // The parser may complain of the flag's value, or of a required flag that this one was meant for.
  const auto flag = std::find_if(unknown.begin(), unknown.end(), is_flag);
  const std::string problem = chosen.empty()          ? problem_without_command(unknown)
                              : flag != unknown.end() ? fmt::format("there is no flag '{}'", *flag)
                                                      : error.what();
  const std::string help = chosen.empty() ? "--help" : chosen[0]->get_name() + " --help";
  print_error(fmt::format("{} (see kdtree {})", problem, help));
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  limit_spinning(argv);
  prepare_standard_streams();
  CLI::App app("kdtree: inference for Kimi K2 models with DDTree speculative decoding");
  app.require_subcommand(1);
  app.set_version_flag("--version", "kdtree, commit " KDT_COMMIT, "Print the commit and exit");
  app.get_formatter()->column_width(26);
  app.footer(
      "'kdtree COMMAND --help' lists the flags of a command. A first try:\n"
      "  kdtree generate --model models/tiny-k2 --draft models/tiny-k2-dflash \\\n"
      "      --prompt 'def fibonacci(n):'\n");
  Command command;
  const auto add = [&](Command (*adder)(CLI::App&)) {
    // The chosen subcommand's callback leaves its command here.
    const size_t before = app.get_subcommands(nullptr).size();
    const Command chosen = adder(app);
    CLI::App* subcommand = app.get_subcommands(nullptr)[before];
    subcommand->callback([&command, chosen] { command = chosen; });
    for (CLI::Option* option : subcommand->get_options())
      if (option->get_expected_max() == 0) option->check(no_value());
  };
  add(add_generate);
  add(add_inspect);
  add(add_bench);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    return run(
        [&] { return write_out(chosen.empty() ? app.help() : chosen[0]->help("kdtree")), 0; });
  } catch (const CLI::CallForVersion& version) {
    return run([&] { return write_out(fmt::format("{}\n", version.what())), 0; });
  } catch (const CLI::ParseError& error) {
    return complain(app, error);
  }
  return run([&] { return install_interrupt_handler(), command(); });
}
