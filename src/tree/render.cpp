// Draws a draft tree with box-drawing characters.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "tree/tree.h"

namespace kdt::tree {
namespace {

constexpr int kBarColumns = 8;

// A piece of text and the terminal columns it takes.
struct Text {
  std::string bytes;
  int columns = 0;

  void append(std::string_view s, int n_columns) {
    bytes += s;
    columns += n_columns;
  }
};

struct Range {
  uint32_t first, last;
};

bool within(const Range* begin, const Range* end, uint32_t c) {
  return std::any_of(begin, end, [c](const Range& r) { return c >= r.first && c <= r.last; });
}

// Terminal columns: 2 for East Asian wide characters and emoji, 0 for marks that combine.
int columns_of(uint32_t c) {
  static constexpr Range kWide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},
                                    {0xa960, 0xa97f},   {0xac00, 0xd7a3},   {0xf900, 0xfaff},
                                    {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
                                    {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1faff},
                                    {0x20000, 0x3fffd}};
  static constexpr Range kMarks[] = {{0x0300, 0x036f}, {0x0483, 0x0489}, {0x0591, 0x05bd},
                                     {0x064b, 0x065f}, {0x0e31, 0x0e31}, {0x0e34, 0x0e3a},
                                     {0x0e47, 0x0e4e}, {0x200b, 0x200f}, {0x20d0, 0x20ff},
                                     {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}};
  if (within(std::begin(kMarks), std::end(kMarks), c)) return 0;
  return within(std::begin(kWide), std::end(kWide), c) ? 2 : 1;
}

// The next character of `s` at i as a terminal can show it; moves i past it.
Text next_character(std::string_view s, size_t* i) {
  Text out;
  const Utf8Unit unit = first_utf8_unit(s.substr(*i));
  const bool valid = unit.kind == Utf8Unit::Kind::kValid;
  const std::string_view bytes = s.substr(*i, valid ? unit.bytes : 1);
  const uint32_t code = unit.code_point;
  *i += bytes.size();
  if (!valid) {
    out.append("\uFFFD", 1);
  } else if (code == ' ') {
    out.append("·", 1);
  } else if (code == '\n') {
    out.append("\\n", 2);
  } else if (code == '\t') {
    out.append("\\t", 2);
  } else if (code < 0x20 || (code >= 0x7f && code < 0xa0)) {
    out.append(fmt::format("\\x{:02x}", code), 4);
  } else if ((code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069)) {
    out.append(fmt::format("\\u{:04x}", code), 6);  // reverses the line
  } else {
    out.append(bytes, columns_of(code));
  }
  return out;
}

// At most `limit` columns of the text, ending in an ellipsis where something is missing.
Text fitted(std::string_view s, int limit) {
  Text out, with_ellipsis;
  for (size_t i = 0; i < s.size();) {
    if (out.columns < limit) with_ellipsis = out;
    const Text c = next_character(s, &i);
    if (out.columns + c.columns > limit) {
      if (limit > 0) with_ellipsis.append("…", 1);
      return with_ellipsis;
    }
    out.append(c.bytes, c.columns);
  }
  return out;
}

std::string bar(double probability) {
  static constexpr std::string_view kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::lround(probability * kBarColumns * 8));
  std::string out;
  int columns = eighths / 8;
  for (int i = 0; i < columns; ++i) out += "█";
  if (eighths % 8) {
    out += kEighths[eighths % 8];
    ++columns;
  }
  return out.append(static_cast<size_t>(kBarColumns - columns), ' ');
}

std::string percent(double probability) {
  if (probability > 0 && probability < 0.0005) return "<0.1%";
  return probability < 0.0995 ? fmt::format("{:4.1f}%", probability * 100)
                              : fmt::format("{:4.0f}%", probability * 100);
}

// Wraps text in a terminal style.
std::string styled(const std::string& text, const char* style, bool color) {
  return color && !text.empty() ? fmt::format("\x1b[{}m{}\x1b[0m", style, text) : text;
}

// The rails left of every node: what is drawn before its mark, and before its children's.
struct Rails {
  Text own, below;
};

// `n_siblings` children share the parent, this is number `index` of them.
Rails rails_of(const Text& parent_below, int index, int n_siblings) {
  if (n_siblings == 1) return {parent_below, parent_below};
  Rails rails{parent_below, parent_below};
  const bool last = index + 1 == n_siblings;
  rails.own.append(last ? "└─" : "├─", 2);
  rails.below.append(last ? "  " : "│ ", 2);
  return rails;
}

std::string line_of(const DraftTree& tree, int32_t node, const Text& rails, bool is_accepted,
                    const std::string& label, bool color, int width) {
  const double probability = std::clamp(std::exp(tree.scores[node]), 0.0, 1.0);
  const int head_columns = 5 + 1 + kBarColumns + 1;
  std::string line = styled(percent(probability), "2", color) + " " +
                     styled(bar(probability), is_accepted ? "32" : "2", color) + " ";
  const int room = std::max(0, width - head_columns);
  if (rails.columns + 3 > room) return line + (room > 0 ? "…" : "");
  const Text text = fitted(label, room - rails.columns - 2);
  const std::string shown = (is_accepted ? "● " : "○ ") + text.bytes;
  return line + styled(rails.bytes, "2", color) +
         (is_accepted ? styled(shown, "1;32", color) : shown);
}

}  // namespace

std::string render(const DraftTree& tree, const std::vector<int32_t>& accepted,
                   const std::function<std::string(int32_t token)>& label, bool color, int width) {
  validate(tree);
  std::vector<bool> is_accepted(tree.tokens.size());
  for (const int32_t node : accepted) {
    if (node < 0 || node >= tree.n_nodes())
      throw_error(ErrorCode::kInvalidArgument, "draft tree: accepted node {}, expected 0..{}", node,
                  tree.n_nodes() - 1);
    is_accepted[node] = true;
  }
  std::vector<std::vector<int32_t>> children(tree.tokens.size());
  for (int32_t node = 1; node < tree.n_nodes(); ++node)
    children[tree.parents[node]].push_back(node);

  std::string out;
  std::vector<std::pair<int32_t, Rails>> open = {{0, {}}};  // a stack, next node last
  while (!open.empty()) {
    const auto [node, rails] = open.back();
    open.pop_back();
    out +=
        line_of(tree, node, rails.own, is_accepted[node], label(tree.tokens[node]), color, width);
    out += '\n';
    const int n = static_cast<int>(children[node].size());
    for (int i = n - 1; i >= 0; --i)
      open.emplace_back(children[node][i], rails_of(rails.below, i, n));
  }
  return out;
}

}  // namespace kdt::tree
