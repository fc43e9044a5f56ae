"""The names of `import dresfl as dr`: quick to import, documented, each with an example that ends in an equality."""

import doctest
import subprocess
import sys

import pytest

import dresfl as dr


def test_importing_dresfl_imports_neither_torch_nor_numpy():
    code = "import sys, dresfl; dresfl.__version__; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="dresfl"):
        _ = dr.simulat
    assert "simulate" in dir(dr)


@pytest.mark.parametrize("name", dr.__all__)
def test_every_name_has_a_docstring_with_an_example(name):
    value = getattr(dr, name)
    assert value.__doc__
    assert any(test.examples for test in doctest.DocTestFinder().find(value, name)), f"{name} has no example"
