"""Schemas as people have them: what pydantic makes of models of many kinds, and what Zod, TypeBox, OpenAPI and the tools of known agents and servers
say. Each is answered with what is valid, or refused by the name of what cannot be had (REFUSED)."""
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import uuid
from typing import (Annotated, Any, DefaultDict, Generic, Literal, Mapping, NamedTuple, Optional, Sequence, TypeVar, Union)

import pydantic
from pydantic import (UUID4, AnyUrl, AwareDatetime, Base64Str, BaseModel, ByteSize, ConfigDict, Discriminator, Field, FiniteFloat, HttpUrl, IPvAnyAddress, Json, JsonValue, NaiveDatetime, NegativeInt, NonNegativeFloat,
                      PastDate, PositiveInt, RootModel, SecretStr, StrictBool, StrictInt, Tag, computed_field, conint, confloat, conlist, conset, constr)
from typing_extensions import Required, TypedDict


class Kind(enum.Enum):
    a = 1
    b = "x"
    c = None


class Number(enum.IntEnum):
    one = 1
    two = 2


class Inner(BaseModel):
    a: int
    b: Optional["Inner"] = None


class Tree(BaseModel):
    v: str
    kids: list["Tree"] = []
    parent: Optional["Tree"] = None


class Folder(BaseModel):
    type: Literal["folder"] = "folder"
    items: list[Annotated[Union["File", "Folder"], Field(discriminator="type")]]


class File(BaseModel):
    type: Literal["file"] = "file"
    size: int


Folder.model_rebuild()


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int
    b: str | None = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class OpenTyped(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int
    __pydantic_extra__: dict[str, int]


class Alias(BaseModel):
    foo: int = Field(alias="foo bar")
    cls: str = Field(alias="class")


class Described(BaseModel):
    """Doc."""
    x: Inner = Field(description="an inner", title="T", examples=[{"a": 1}], deprecated=True)
    y: Inner = Field(Inner(a=1), description="other")


class Child(Closed):
    c: list[Closed]
    d: dict[str, Closed]
    e: tuple[Closed, int]


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T]
    total: int = Field(ge=0)
    next: Optional[HttpUrl] = None


class RootDict(RootModel):
    root: dict[str, list[int]]


class RootUnion(RootModel):
    root: Union[Closed, list[Closed], str]


@dataclasses.dataclass
class Data:
    a: int
    b: list[str] = dataclasses.field(default_factory=list)


class Typed(TypedDict, total=False):
    a: Required[int]
    b: str


class Named(NamedTuple):
    a: int
    b: str = "x"


class Computed(BaseModel):
    w: int
    h: int

    @computed_field
    @property
    def area(self) -> int:
        return self.w * self.h


def model(name="M", **fields):
    return pydantic.create_model(name, **{k: (v, ...) for k, v in fields.items()})


CAT, DOG = model("Cat", kind=Literal["cat"], n=int), model("Dog", kind=Literal["dog", "wolf"], g=bool)
CIRCLE = pydantic.create_model("Circle", kind=(Literal["circle"], "circle"), r=(float, Field(gt=0)))
SQUARE = pydantic.create_model("Square", kind=(Literal["square"], "square"), a=(float, ...))
TYPES = {  # of one field
    "mixed enum": Kind,
    "int enum": Number,
    "literal mixed": Literal["a",1,True,None],
    "literal one": Literal["a"],
    "optional": Optional[int],
    "union": Union[int,str,float,bool,None],
    "list": list[int],
    "list of list": list[list[float]],
    "set of int": set[int],
    "set str": set[str],
    "frozenset": frozenset[Literal["a","b"]],
    "tuple": tuple[int,str,bool],
    "tuple var": tuple[int,...],
    "empty tuple": tuple[()],
    "dict": dict[str,int],
    "dict any": dict[str,Any],
    "dict int keys": dict[int,str],
    "dict enum keys": dict[Literal["a","b"],int],
    "dict uuid keys": dict[uuid.UUID,int],
    "dict date keys": dict[datetime.date,int],
    "dict constrained keys": dict[Annotated[str,Field(pattern="^[a-z]+$")],int],
    "dict min": Annotated[dict[str,int],Field(min_length=1,max_length=3)],
    "dict minlen 2": Annotated[dict[str,int],Field(min_length=2)],
    "dict key length": dict[Annotated[str,Field(min_length=2,max_length=5)],int],
    "any": Any,
    "object": object,
    "bytes": bytes,
    "date": datetime.date,
    "datetime": datetime.datetime,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "aware": AwareDatetime,
    "naive": NaiveDatetime,
    "past": PastDate,
    "uuid4": UUID4,
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
    "decimal c": Annotated[decimal.Decimal,Field(ge=0,max_digits=5,decimal_places=2)],
    "path": pathlib.Path,
    "ip": ipaddress.IPv4Address,
    "ip6": ipaddress.IPv6Address,
    "ipany": IPvAnyAddress,
    "net": ipaddress.IPv4Network,
    "url": AnyUrl,
    "httpurl": HttpUrl,
    "json": Json,
    "jsonany": JsonValue,
    "base64": Base64Str,
    "bytesize": ByteSize,
    "pos": PositiveInt,
    "nonneg f": NonNegativeFloat,
    "negint": NegativeInt,
    "conint": conint(ge=1,le=10,multiple_of=2),
    "confloat": confloat(gt=0,lt=1),
    "finite": FiniteFloat,
    "strict": StrictInt,
    "strictbool": StrictBool,
    "constr": constr(min_length=1,max_length=5,pattern=r"^\w+$"),
    "constr strip": constr(strip_whitespace=True,to_upper=True),
    "regex phone": constr(pattern=r"^\(?\d{3}\)?[-. ]?\d{3}[-. ]?\d{4}$"),
    "regex slug": constr(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$"),
    "conlist": conlist(str,min_length=2,max_length=3),
    "conset": conset(int,min_length=1,max_length=3),
    "callable disc": Annotated[Union[Annotated[int,Tag("i")],Annotated[str,Tag("s")]],Discriminator(lambda v:"i")],
    "int range big": conint(ge=-10**12,le=10**12),
    "float range": confloat(ge=-1.5,le=2.25),
    "int excl": conint(gt=0,lt=3),
    "float excl": confloat(gt=0.0),
    "mult only": conint(multiple_of=5),
    "fl mult only": confloat(multiple_of=0.5),
    "sequence": Sequence[int],
    "mapping": Mapping[str,int],
    "deque": collections.deque[int],
    "counter": collections.Counter[str],
    "defaultdict": DefaultDict[str,list[int]],
    "fraction": fractions.Fraction,
    "nested optional list": Optional[list[Optional[int]]],
    "anyof enum": Optional[Kind],
    "list enum": list[Number],
    "dict of union": dict[str,Union[int,list[int],None]],
    "union models": Union[model("A", a=int), model("B", b=str)], "tagged": Annotated[Union[CAT, DOG], Field(discriminator="kind")], "untagged": list[Union[CIRCLE, SQUARE]],
    "secret": SecretStr, "dataclass": Data, "typeddict": Typed, "namedtuple": Named, "halves": confloat(multiple_of=0.5, ge=0, le=10),
    "regular expression": re.Pattern, "flags": constr(pattern="(?i)^abc$"), "word": constr(pattern=r"\bfoo\b"), "letters": constr(pattern=r"^\p{L}+$"),
}
MODELS = {**{name: model(x=kind) for name, kind in TYPES.items()}, "defaults": pydantic.create_model("M", x=(Optional[str], None), y=(int, 3)),
          **{m.__name__: m for m in [Inner, Tree, Folder, Closed, Open, OpenTyped, Alias, Described, Child, Page[Closed], RootDict, RootUnion, Computed]}}


def o(properties, required=None, **more):
    return {"type": "object", "properties": properties, **({} if required is None else {"required": required}), **more}


st, it = {"type": "string"}, {"type": "integer"}
GIVEN = {
    # MCP servers / agents
    "mcp filesystem edit": o({"path": st, "edits": {"type": "array", "items": o({"oldText": {"type": "string", "description": "Text to search for"}, "newText": st}, ["oldText", "newText"], additionalProperties=False)}, "dryRun": {"type": "boolean", "default": False}}, ["path", "edits"], additionalProperties=False, **{"$schema": "http://json-schema.org/draft-07/schema#"}),
    "mcp github search": o({"q": st, "order": {"type": "string", "enum": ["asc", "desc"]}, "page": {"type": "number", "minimum": 1}, "per_page": {"type": "number", "minimum": 1, "maximum": 100}, "sort": {"type": "string", "enum": ["comments", "created"]}}, ["q"], additionalProperties=False),
    "mcp playwright": o({"element": st, "ref": st, "values": {"type": "array", "items": st}, "button": {"type": "string", "enum": ["left", "right", "middle"]}, "modifiers": {"type": "array", "items": {"type": "string", "enum": ["Alt", "Control"]}}}, ["element", "ref", "values"], additionalProperties=False),
    "todo list": o({"todos": {"type": "array", "items": o({"content": {"type": "string", "minLength": 1}, "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]}, "id": st}, ["content", "status", "id"], additionalProperties=False)}}, ["todos"], additionalProperties=False, **{"$schema": "http://json-schema.org/draft-07/schema#"}),
    "edit of a file": o({"file_path": st, "old_string": st, "new_string": st, "replace_all": {"type": "boolean", "default": False}}, ["file_path", "old_string", "new_string"], additionalProperties=False),
    "shell command": o({"command": st, "timeout": {"type": "number"}, "description": st, "run_in_background": {"type": "boolean"}}, ["command"], additionalProperties=False),
    "webfetch uri": o({"url": {"type": "string", "format": "uri"}, "prompt": st}, ["url", "prompt"], additionalProperties=False),
    # zod 3 / 4
    "zod union": o({"x": {"anyOf": [st, {"type": "number"}, {"type": "null"}]}}, ["x"], additionalProperties=False),
    "zod disc": {"oneOf": [o({"type": {"type": "string", "const": "a"}, "v": st}, ["type", "v"], additionalProperties=False), o({"type": {"type": "string", "const": "b"}, "n": {"type": "number"}}, ["type", "n"], additionalProperties=False)]},
    "zod record": o({"x": {"type": "object", "propertyNames": st, "additionalProperties": {"type": "number"}}}, ["x"], additionalProperties=False),
    "zod record enum": {"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]}, "additionalProperties": it},
    "zod datetime": {"type":"string","format":"date-time","pattern":r"^(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))T(?:(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z))$"},
    "zod uuid": {"type": "string", "format": "uuid", "pattern": "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"},
    "zod int": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
    "zod intersection": {"allOf": [o({"a": st}, ["a"], additionalProperties=False), o({"b": it}, ["b"], additionalProperties=False)]},
    "zod4 intersection": {"allOf": [o({"a": st}, ["a"]), o({"b": it}, ["b"])]},
    "zod tuple rest": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "minItems": 2, "items": [st, it], "additionalItems": {"type": "boolean"}},
    "zod nullable": {"anyOf": [st, {"type": "null"}]},
    "zod nullable openapi": {"type": "string", "nullable": True},
    "zod base64": {"type": "string", "contentEncoding": "base64", "format": "base64", "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"},
    "zod ipv4": {"type":"string","format":"ipv4","pattern":r"^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])$"},
    "zod regex startswith": {"type":"string","pattern":"^https:\\/\\/.*"},
    "zod includes": {"type": "string", "pattern": "foo", "minLength": 2},
    "zod allof patterns": {"type": "string", "allOf": [{"pattern": "^a.*"}, {"pattern": ".*b$"}]},
    "zod int exclusive": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
    # openai docs
    "openai extraction": o({"title": st, "authors": {"type": "array", "items": st}, "abstract": st, "keywords": {"type": "array", "items": st}}, ["title", "authors", "abstract", "keywords"], additionalProperties=False),
    "openai moderation": o({"is_violating": {"type": "boolean"}, "category": {"type": ["string", "null"], "enum": ["violence", "sexual", "self_harm", None]}, "explanation_if_violating": {"type": ["string", "null"]}}, ["is_violating", "category", "explanation_if_violating"], additionalProperties=False),
    "openai anyOf items": o({"item": {"anyOf": [o({"name": st, "age": {"type": "number"}}, ["name", "age"], additionalProperties=False), o({"number": st, "street": st, "city": st}, ["number", "street", "city"], additionalProperties=False)]}}, ["item"], additionalProperties=False),
    "openai linked list": o({"linked_list": {"$ref": "#/$defs/n"}}, ["linked_list"], additionalProperties=False, **{"$defs": {"n": o({"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, ["value", "next"], additionalProperties=False)}}),
    "openai strict types": o({"e": {"type": "string", "format": "email"}, "u": {"type": "string", "format": "uuid"}, "t": {"type": "string", "format": "date-time"}, "h": {"type": "string", "format": "hostname"}, "m": {"type": "number", "multipleOf": 0.5, "minimum": 0, "exclusiveMaximum": 10}}, ["e", "u", "t", "h", "m"], additionalProperties=False),
    # typebox / json-schema-to-ts / ajv / openapi
    "typebox union literals": {"anyOf": [{"const": "a", "type": "string"}, {"const": "b", "type": "string"}]},
    "typebox record": {"type": "object", "patternProperties": {"^(.*)$": {"type": "number"}}},
    "typebox record key": {"type": "object", "additionalProperties": False, "patternProperties": {"^(0|[1-9][0-9]*)$": st}},
    "typebox intersect": {"type": "object", "allOf": [o({"a": st}, ["a"]), o({"b": st}, ["b"])], "unevaluatedProperties": False},
    "typebox composite closed": {"allOf": [o({"a": st}, ["a"], additionalProperties=False), o({"a": st}, [], additionalProperties=False)]},
    "openapi oneOf disc": {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "discriminator": {"propertyName": "petType", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}}, "$defs": {"Cat": o({"petType": {"const": "cat"}, "h": st}, ["petType"]), "Dog": o({"petType": {"const": "dog"}, "b": it}, ["petType"])}},
    "openapi oneOf enum disc": {"oneOf": [o({"t": {"type": "string", "enum": ["x"]}, "h": st}, ["t"]), o({"t": {"type": "string", "enum": ["y"]}, "h": it}, ["t"])]},
    "oneOf required": o({"id": st, "name": st}, None, oneOf=[{"required": ["id"]}, {"required": ["name"]}]),
    "anyOf required": o({"id": st, "name": st, "x": it}, ["x"], anyOf=[{"required": ["id"]}, {"required": ["name"]}]),
    "oneOf different required": {"oneOf": [o({"email": st}, ["email"]), o({"phone": st}, ["phone"])]},
    "oneOf different required closed": {"oneOf": [o({"email": st, "n": it}, ["email"], additionalProperties=False), o({"phone": st, "n": it}, ["phone"], additionalProperties=False)]},
    "oneOf object string": {"oneOf": [st, {"type": "array", "items": st}, o({"a": st})]},
    "oneOf null ref": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/a"}], "$defs": {"a": o({"x": st}, ["x"])}},
    "oneOf ranges": {"type": "integer", "oneOf": [{"maximum": 5}, {"minimum": 10}]},
    "oneOf int number": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "oneOf formats": {"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]},
    "oneOf patterns": {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]},
    "anyOf formats": {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]},
    "oneOf arrays": {"oneOf": [{"type": "array", "items": st}, {"type": "array", "items": it}]},
    "oneOf arrays lengths": {"oneOf": [{"type": "array", "items": st, "maxItems": 1}, {"type": "array", "items": st, "minItems": 2}]},
    "if then": {"type": "object", "properties": {"c": {"enum": ["US", "NL"]}, "z": st}, "if": {"properties": {"c": {"const": "US"}}}, "then": {"required": ["z"]}},
    "not": {"type": "string", "not": {"enum": ["a"]}},
    "contains": {"type": "array", "contains": it},
    "dependentRequired": {"type": "object", "properties": {"a": st, "b": st}, "dependentRequired": {"a": ["b"]}},
    "dependencies": {"type": "object", "properties": {"a": st, "b": st}, "dependencies": {"a": ["b"]}},
    "minProperties map": {"type": "object", "additionalProperties": it, "minProperties": 2},
    "definitions": {"definitions": {"a": {"type": "integer"}}, "type": "object", "properties": {"x": {"$ref": "#/definitions/a"}}, "required": ["x"]},
    "$ref sibling desc": o({"x": {"$ref": "#/$defs/a", "description": "d", "default": 1}}, ["x"], **{"$defs": {"a": it}}),
    "allOf ref + props": {"allOf": [{"$ref": "#/$defs/base"}, o({"c": it}, ["c"])], "$defs": {"base": o({"a": st}, ["a"])}},
    "allOf same prop desc": {"allOf": [o({"a": {"type": "string", "description": "x"}}, ["a"]), o({"a": {"type": "string", "description": "y", "maxLength": 4}})]},
    "allOf same enum": {"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", "d"]}]},
    "allOf anyOf": {"allOf": [{"anyOf": [st, it]}, {"anyOf": [it, {"type": "null"}]}]},
    "allOf closed": {"allOf": [o({"a": st}, ["a"], additionalProperties=False), {"properties": {"a": {"minLength": 2}}}]},
    "allOf patterns": {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$"}]},
    "allOf multipleOf": {"allOf": [{"type": "integer", "multipleOf": 2}, {"multipleOf": 3, "minimum": 0, "maximum": 100}]},
    "allOf two refs same key title": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": {"title": "A", "type": "object", "properties": {"a": st}}, "b": {"title": "B", "type": "object", "properties": {"b": st}}}},
    "enum mixed": {"enum": ["a", 1, None, True, 1.5, {"x": 1}, [1]]},
    "type list enum": {"type": ["string", "integer"], "enum": ["a", 1]},
    "const null": {"const": None},
    "integer float bounds": {"type": "integer", "minimum": 0.5, "maximum": 9.5},
    "integer multipleOf float": {"type": "integer", "multipleOf": 1.0, "minimum": 0, "maximum": 10},
    "latlon": {"type": "array", "prefixItems": [{"type": "number", "minimum": -90, "maximum": 90}, {"type": "number", "minimum": -180, "maximum": 180}], "minItems": 2, "maxItems": 2},
    "prefixItems items false": {"type": "array", "prefixItems": [st, it], "items": False},
    "prefixItems open": {"type": "array", "prefixItems": [st, it], "items": {"type": "boolean"}, "maxItems": 4},
    "formats": o({k: {"type": "string", "format": k} for k in ["date", "date-time", "time", "duration", "uuid", "ipv4", "ipv6", "hostname", "email", "uri", "idn-email", "regex", "json-pointer", "binary", "password", "byte", "int32", "uri-reference", "iri"]}, ["date", "uri", "byte", "idn-email", "uri-reference", "json-pointer"]),
    "int64 format": {"type": "integer", "format": "int64", "minimum": 0},
    "float format": {"type": "number", "format": "double"},
    "readOnly etc": {"type": "string", "readOnly": True, "deprecated": True, "contentMediaType": "text/html", "examples": ["x"], "x-foo": 1, "example": "y"},
    "langchain person": {"title": "Person", "description": "d", "type": "object", "properties": {"name": {"title": "Name", "type": "string"}, "height": {"title": "Height", "anyOf": [{"type": "number"}, {"type": "null"}], "default": None}}, "required": ["name"]},
    "instructor partial": {"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}}},
    "ollama": {"type": "object", "properties": {"age": it, "available": {"type": "boolean"}}, "required": ["age", "available"]},
    "draft4 tuple": {"$schema": "http://json-schema.org/draft-04/schema#", "type": "array", "items": [st, it], "additionalItems": False},
    "id $id refs": {"$id": "https://x.org/s.json", "$defs": {"p": {"$id": "/p.json", "type": "integer"}}, "type": "object", "properties": {"a": {"$ref": "/p.json"}}, "required": ["a"]},
    "dynamicAnchor": {"$id": "https://x.org/t", "$dynamicAnchor": "node", "type": "object", "properties": {"v": it, "kids": {"type": "array", "items": {"$dynamicRef": "#node"}}}, "required": ["v"]},
    "recursiveRef": {"$recursiveAnchor": True, "type": "object", "properties": {"kids": {"type": "array", "items": {"$recursiveRef": "#"}}}},
    "uniqueItems free": {"type": "array", "items": st, "uniqueItems": True, "maxItems": 5},
    "gemini upper types": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
    "go invopop": {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://github.com/x/y", "$ref": "#/$defs/T", "$defs": {"T": {"properties": {"a": st, "tags": {"additionalProperties": st, "type": "object"}}, "additionalProperties": False, "type": "object", "required": ["a"]}}},
    "csharp": {"type": ["object", "null"], "properties": {"Name": {"type": ["string", "null"]}, "When": {"type": "string", "format": "date-time"}, "Kind": {"enum": ["A", "B"]}}, "required": ["Name"]},
    "required without props": {"type": "object", "required": ["a"], "additionalProperties": st},
    "pattern props and props": {"type": "object", "properties": {"name": st}, "patternProperties": {"^x-": st}, "additionalProperties": False},
    "pattern props two": {"type": "object", "patternProperties": {"^s_": st, "^i_": it}, "additionalProperties": False},
    "propertyNames pattern": {"type": "object", "propertyNames": {"pattern": "^[a-z_]+$"}, "additionalProperties": it},
    "propertyNames maxLength + props": {"type": "object", "properties": {"ab": it}, "propertyNames": {"maxLength": 5}},
    "title props named like keywords": o({"type": st, "enum": {"type": "array", "items": st}, "properties": it, "$ref": st, "not": {"type": "boolean"}}, ["type", "enum", "$ref", "not"]),
    "boolean true schemas": o({"a": True, "b": {}}, ["a", "b"]),
    "empty enum string": {"type": "string", "enum": [""]},
    "default false no type": {"description": "anything", "default": None},
    "mcp no params": {"type": "object", "properties": {}, "additionalProperties": False, "$schema": "http://json-schema.org/draft-07/schema#"},
    "type object only": {"type": "object"},
    "array no items": {"type": "array"},
    "number exclusive both": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
}

REFUSED = {  # the keyword that cannot be had
    **dict.fromkeys(["set of int", "set str", "conset", "uniqueItems free"], "uniqueItems"), **dict.fromkeys(["dict minlen 2", "minProperties map"], "minProperties"),
    **dict.fromkeys(["flags", "word", "letters"], "pattern"), **dict.fromkeys(["oneOf ranges", "oneOf int number", "oneOf formats", "oneOf patterns", "oneOf arrays", "oneOf arrays lengths"], "oneOf"),
    "zod intersection": "additionalProperties", "zod nullable openapi": "nullable", "if then": "if", "not": "not", "contains": "contains", "dependentRequired": "dependentRequired",
    "dependencies": "dependencies", "allOf anyOf": "anyOf", "allOf multipleOf": "multipleOf", "id $id refs": "$ref", "dynamicAnchor": "$dynamicRef", "recursiveRef": "$recursiveRef",
    "gemini upper types": "type", "pattern props and props": "patternProperties", "pattern props two": "patternProperties", "propertyNames maxLength + props": "propertyNames",
}
