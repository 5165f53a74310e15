// kdtree inspect: what a KDTR file or a checkpoint directory holds, and whether it is sound.
#include "checkpoint/inspect.h"

#include <filesystem>

#include "apps/commands.h"
#include "apps/output.h"
#include "base/error.h"
#include "kdtr/summary.h"

namespace kdt::apps {
namespace {

struct InspectOptions {
  std::string path;
  bool verify = false;
};

int inspect_directory(const InspectOptions& o) {
  if (o.verify)
    throw UsageError("--verify is for KDTR files: the files of a checkpoint hold no checksums");
  const checkpoint::InspectReport report = checkpoint::inspect_checkpoint(o.path);
  write_out(checkpoint::format_report(report));
  if (!report.complete())
    throw_error(ErrorCode::kBadFile, "{}: incomplete checkpoint: {} tensors missing, {} wrong",
                o.path, report.missing.count, report.wrong.count);
  return 0;
}

int inspect_file(const InspectOptions& o) {
  if (std::filesystem::is_regular_file(o.path) && !kdtr::is_kdtr(o.path))
    throw_error(ErrorCode::kInvalidArgument,
                "{}: inspect takes the directory of a checkpoint or a KDTR file; this is neither{}",
                o.path, o.path.ends_with(".safetensors") ? "; give its directory" : "");
  const kdtr::Summary summary = kdtr::summarize(kdtr::Reader(o.path), o.verify);
  write_out(kdtr::to_text(summary));
  if (!summary.sound)
    throw_error(ErrorCode::kBadFile, "{}: payloads do not match their checksums", o.path);
  return 0;
}

}  // namespace

Command add_inspect(CLI::App& app) {
  const auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      app.add_subcommand("inspect", "Say what a checkpoint directory or a KDTR file holds");
  command
      ->add_option("PATH", options->path, "Checkpoint directory (target or drafter), or KDTR file")
      ->required();
  command->add_flag("--verify", options->verify,
                    "Check the payloads of a KDTR file against their CRCs");
  command->footer(
      "Exit status 1 when a checkpoint lacks tensors or a checksum is wrong.\n"
      "Examples:\n"
      "  kdtree inspect models/tiny-k2\n"
      "  kdtree inspect --verify tests/golden/tree_build.budget64.kdtr\n");
  return [options] {
    return std::filesystem::is_directory(options->path) ? inspect_directory(*options)
                                                        : inspect_file(*options);
  };
}

}  // namespace kdt::apps
