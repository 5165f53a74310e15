#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace kdt::checkpoint {
namespace {

// The limit of the reference implementation.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 8;

struct NamedDType {
  std::string_view name;
  DType dtype;
};
constexpr NamedDType kDTypes[] = {
    {"F64", DType::kF64},   {"F32", DType::kF32},        {"F16", DType::kF16},
    {"BF16", DType::kBF16}, {"F8_E4M3", DType::kF8E4M3}, {"I64", DType::kI64},
    {"I32", DType::kI32},   {"I16", DType::kI16},        {"I8", DType::kI8},
    {"U64", DType::kU64},   {"U32", DType::kU32},        {"U16", DType::kU16},
    {"U8", DType::kU8},     {"BOOL", DType::kBool},
};

// Where errors about one tensor come from.
struct Place {
  const std::string& path;
  const std::string& tensor;

  [[noreturn]] void fail(const std::string& what) const {
    throw_error(ErrorCode::kBadFile, "{}: tensor {}: {}", path, printable(tensor), what);
  }
};

const Json& member(const Json& entry, const char* key, const Place& place) {
  const auto it = entry.find(key);
  if (it == entry.end()) place.fail(fmt::format("has no {}", key));
  return *it;
}

DType parse_dtype(const Json& value, const Place& place) {
  if (value.is_string())
    for (const NamedDType& known : kDTypes)
      if (value.get_ref<const std::string&>() == known.name) return known.dtype;
  throw_error(ErrorCode::kUnsupported,
              "{}: tensor {}: dtype is {}, expected F32, BF16, F16, F8_E4M3 or an integer type",
              place.path, printable(place.tensor), shown(value));
}

// A list of unsigned integers that fit int64.
std::vector<int64_t> parse_sizes(const Json& value, const char* key, size_t max_count,
                                 const Place& place) {
  std::vector<int64_t> sizes;
  const bool is_list = value.is_array() && value.size() <= max_count;
  if (!is_list)
    place.fail(
        fmt::format("{} is {}, expected a list of at most {} sizes", key, shown(value), max_count));
  for (const Json& item : value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT64_MAX)
      place.fail(fmt::format("{} is {}, expected sizes of 0 or more", key, shown(value)));
    sizes.push_back(item.get<int64_t>());
  }
  return sizes;
}

TensorView parse_entry(const std::string& name, const Json& entry, std::span<const uint8_t> payload,
                       const std::string& path) {
  const Place place{path, name};
  if (!entry.is_object()) place.fail(fmt::format("is {}, expected an object", shown(entry)));
  TensorView view;
  view.name = name;
  view.dtype = parse_dtype(member(entry, "dtype", place), place);
  view.shape = parse_sizes(member(entry, "shape", place), "shape", kMaxRank, place);
  const Json& written = member(entry, "data_offsets", place);
  const std::vector<int64_t> offsets = parse_sizes(written, "data_offsets", 2, place);
  if (offsets.size() != 2 || offsets[0] > offsets[1] ||
      static_cast<uint64_t>(offsets[1]) > payload.size())
    place.fail(fmt::format("data_offsets is {}, expected [begin, end] within the {} payload bytes",
                           shown(written), payload.size()));
  uint64_t bytes = dtype_bytes(view.dtype);
  for (const int64_t size : view.shape)
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
      place.fail(fmt::format("shape [{}] overflows", fmt::join(view.shape, ", ")));
  const auto stored = static_cast<uint64_t>(offsets[1] - offsets[0]);
  if (stored != bytes)
    place.fail(fmt::format("{} needs {} bytes, data_offsets {} give {}", describe(view), bytes,
                           shown(written), stored));
  view.data = payload.subspan(static_cast<size_t>(offsets[0]), stored);
  return view;
}

// Sorts by offset and rejects overlaps and holes, inside and at the end.
void check_tiling(std::vector<TensorView>& tensors, std::span<const uint8_t> payload,
                  const std::string& path) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    return std::make_pair(a.data.data(), a.data.size()) <
           std::make_pair(b.data.data(), b.data.size());
  });
  const uint8_t* expected = payload.data();
  for (const TensorView& tensor : tensors) {
    if (tensor.data.data() != expected)
      Place{path, tensor.name}.fail(
          fmt::format("payload begins at byte {}, expected {} ({})",
                      tensor.data.data() - payload.data(), expected - payload.data(),
                      tensor.data.data() < expected ? "it overlaps another tensor" : "a hole"));
    expected += tensor.data.size();
  }
  const auto used = static_cast<size_t>(expected - payload.data());
  if (used != payload.size())
    throw_error(ErrorCode::kBadFile, "{}: {} payload bytes, but the tensors use only {}", path,
                payload.size(), used);
}

}  // namespace

std::string describe(const TensorView& tensor) {
  return fmt::format("{} [{}]", dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "));
}

std::vector<TensorView> parse_safetensors(std::span<const uint8_t> bytes, const std::string& path) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes))
    throw_error(ErrorCode::kBadFile, "{}: {} bytes is too short for a safetensors file", path,
                bytes.size());
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const std::span<const uint8_t> rest = bytes.subspan(sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes)
    throw_error(ErrorCode::kBadFile, "{}: header of {} bytes, at most {} expected: not safetensors",
                path, header_bytes, kMaxHeaderBytes);
  if (header_bytes > rest.size())
    throw_error(ErrorCode::kBadFile,
                "{}: truncated: header of {} bytes, but the file ends after {}", path, header_bytes,
                rest.size());
  const std::span<const uint8_t> payload = rest.subspan(header_bytes);
  const Json header = parse_object(
      {reinterpret_cast<const char*>(rest.data()), static_cast<size_t>(header_bytes)}, path);

  std::vector<TensorView> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    tensors.push_back(parse_entry(name, entry, payload, path));
  }
  check_tiling(tensors, payload, path);
  return tensors;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(std::make_unique<MappedFile>(path)), tensors_(parse_safetensors(file_->bytes(), path)) {
  for (TensorView& tensor : tensors_) tensor.file = file_.get();
}

}  // namespace kdt::checkpoint
