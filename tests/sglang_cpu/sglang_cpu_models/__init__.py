"""The models that the tests load: named here, SGLang need not import its other 250 model modules."""
